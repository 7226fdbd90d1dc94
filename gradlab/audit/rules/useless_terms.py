"""Terms of a loss that move none of the weights that are stepped afterwards."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradlab.audit.rules.ownership import concerns, undecided
from gradlab.audit.rules.reach import known, overlap
from gradlab.audit.rules.registry import Hit, scenario_rule
from gradlab.audit.rules.reporting import uncertain
from gradlab.audit.source.syntax import dotted
from gradlab.audit.trace.provenance import first_cut, is_traced, sources
from gradlab.audit.trace.replay import Occurrence
from gradlab.audit.trace.scenarios import Scenario
from gradlab.audit.trace.tensors import made_of
from gradlab.audit.trace.training_loop import differentiable
from gradlab.audit.trace.values import Value


@scenario_rule("GL615")
def term_of_nothing_trained(scenario: Scenario) -> Iterator[Hit]:
    for backward in scenario.of("backward"):
        loss = backward.event.value
        if loss is None or loss.kind != "tensor":
            continue
        moved = moved_by(scenario, backward)
        for term in loss.parts:
            if is_traced(term) and (without_graph(term, loss) or idle(term, loss, moved)):
                places = (one for one in (graph_lost(term, loss, moved), term.term) if one is not None)
                node, path = next(places, (None, ""))
                yield Hit(backward, (), node if path == backward.event.path else None)
        beside = moved or [event.value for event in sources(loss) if event.value is not None]
        for number in loss.numbers:
            besides = any(one in made_of(loss) for one in number.made_of)  # with its graph
            if reaches(number, beside) and not besides and not goes_backward(scenario, number):
                yield Hit(backward, (), number.cut, number.cut_path)


def goes_backward(scenario: Scenario, term: Value) -> bool:
    """Whether a tensor of which only the number is in a loss is, or may be, differentiated by itself."""
    losses = [b.event.value or Value() for b in scenario.of("backward")]
    return any(not loss.roots or term.roots <= loss.roots for loss in losses if term not in loss.numbers)


def graph_lost(term: Value, loss: Value, moved: list[Value]) -> tuple[ast.AST, str] | None:
    """Where a term lost its graph, if it would move what is trained otherwise, and the file of that."""
    lost = first_cut(term)
    on_the_way = any(
        event.value is not None and any(overlap(event.value, one) for one in moved) for event in term.chain
    )
    if lost is None or lost.cut is None or not (on_the_way or without_graph(term, loss)):
        return None
    return lost.cut, lost.cut_path


def without_graph(term: Value, loss: Value) -> bool:
    """Whether a term has no graph, and is of derivatives, or of a network in no_grad() that another term trains."""
    if sources(term):
        return False
    lost = first_cut(term)
    if lost is not None and isinstance(lost.cut, ast.Call) and dotted(lost.cut.func).endswith("grad"):
        return True  # torch.autograd.grad() without create_graph
    others = [event for part in loss.parts if part is not term for event in part.chain]
    trained = [event.value for event in others if event.value is not None and differentiable(event)]
    return any(
        event.value is not None and not differentiable(event) and any(overlap(event.value, one) for one in trained)
        for event in term.chain
    )


def idle(term: Value, loss: Value, moved: list[Value]) -> bool:
    """Whether a term reaches none of the networks that are moved, of which another term reaches one."""
    passed = tuple(event.value for event in (*term.chain, *sources(term)) if event.value is not None)
    apart = known(passed) and known(tuple(moved)) and not reaches(term, moved)
    return apart and any(reaches(one, moved) for one in loss.parts)


def moved_by(scenario: Scenario, backward: Occurrence) -> list[Value]:
    """The networks of optimizers that step with the gradients of a backward pass, where all optimizers' are known."""
    loop = scenario.loop
    optimizers = loop.of_networks()
    if any(not o.trained or o.some or undecided(o) for o in optimizers):
        return []
    if uncertain(loop, "optimizer", "gradients", "self", "groups", scenario=scenario):
        return []
    return [model for o in optimizers if steps_with(scenario, backward, o) for model in o.trained]


def steps_with(scenario: Scenario, backward: Occurrence, optimizer: Value) -> bool:
    """Whether an optimizer uses the gradients of a backward pass before it zeroes them."""
    for one in scenario.after(backward):
        if one.kind == "zero" and concerns(scenario.loop, one, optimizer) is not False:
            return False
        if one.kind == "step" and concerns(scenario.loop, one, optimizer):
            return True
    return False


def reaches(term: Value, models: list[Value]) -> bool:
    """Whether a term's gradient reaches one of these models."""
    passes = (event for event in sources(term) if differentiable(event) and event.value is not None)
    return any(overlap(event.value, model) for event in passes for model in models)  # type: ignore[arg-type]
