"""Graphs that two backward passes go through."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from gradlab.audit.rules.reach import moved, overlap, put_into_train
from gradlab.audit.rules.registry import Hit, loop_rule, scenario_rule
from gradlab.audit.source.project import methods_of
from gradlab.audit.source.syntax import dotted, walk
from gradlab.audit.trace.provenance import pieces, sources
from gradlab.audit.trace.replay import Occurrence
from gradlab.audit.trace.scenarios import Scenario
from gradlab.audit.trace.tensors import made_of
from gradlab.audit.trace.training_loop import TrainingLoop, differentiable
from gradlab.audit.trace.values import NO_ROOTS, Event, Value

RECURRENT = re.compile(r"(torch\.)?nn\.(LSTM|GRU|RNN)(Cell)?")
"""PyTorch's recurrent networks."""
CUTTING = re.compile(r"detach_?$|^data$|no_grad|inference_mode")
"""What a network cuts a graph with."""
MAKING = re.compile(r"_*(init|reset)")
"""Names of methods that make weights and first states."""


@scenario_rule("GL719")
def graph_used_again(scenario: Scenario) -> Iterator[Hit]:
    """Two losses come from one forward pass of a network that is trained, and the first frees its graph."""
    trained = [*moved(scenario.loop), *put_into_train(scenario.loop)]
    backwards = scenario.of("backward")
    for first, second in pairwise(backwards):
        if (
            (first.k, first.repeat) != (second.k, second.repeat)
            or not frees(first.event)
            or first.event is second.event
            or of_no_alternative(scenario.loop, second)
        ):
            continue
        if {*map(id, losses(first))} & {*map(id, losses(second))}:
            yield Hit(second, (first,))
            continue
        trained = [*trained, *of_two_optimizers(scenario.loop, first, second)]
        both = [e for e in forwards(first) if e in forwards(second)]
        taken = [pieces_of(first), pieces_of(second)]
        for event in both if not cut_inside(forwards(first), forwards(second)) else ():
            if through_same(event, trained, taken) and happened(scenario, event, first, second):
                yield Hit(second, (first,))
                break


def of_no_alternative(loop: TrainingLoop, step: Occurrence) -> bool:
    """Whether something happens where a word is none of those that it is compared with: then no loss is computed."""
    known = [(a.subject, (a.key, True) in step.guards) for a in loop.atoms if a.subject]
    asked = {a.subject for a in loop.atoms if a.subject and (a.key, False) in step.guards}
    return any((subject, True) not in known for subject in asked)


def of_two_optimizers(loop: TrainingLoop, first: Occurrence, second: Occurrence) -> list[Value]:
    """The networks of two losses that come from the same two, where two optimizers step: each has one of them."""
    one, two = ({e.value.root() for e in forwards(s) if e.value is not None} for s in (first, second))
    return [*one] if one == two and len(one) == 2 == len(loop.optimizers()) else []


@loop_rule("GL719")
def state_keeps_graph(loop: TrainingLoop) -> Iterator[tuple[str, ast.AST]]:
    """A recurrent network's state goes from batch to batch with its graph, which each backward pass frees."""
    if loop.statement is None:
        return
    for event in loop.events:
        value = event.value
        if event.kind != "backward" or value is None or not frees(event):
            continue
        for forward in (e for e in value.chain if e.frames == event.frames and differentiable(e)):
            if carried_over(forward, loop.statement.node):
                yield event.path, event.node
                return


def carried_over(forward: Event, loop: ast.AST) -> bool:
    """Whether a recurrent network receives what it returned in the iteration before, and nothing else has it."""
    model, call = forward.value.root() if forward.value is not None else None, forward.node
    made = next((n for n in walk(loop) if isinstance(n, ast.Assign) and n.value is call), None)
    if made is None or model is None or not recurrent(model) or not isinstance(call, ast.Call):
        return False
    results = [one for target in made.targets if isinstance(target, ast.Tuple) for one in target.elts[1:]]
    given = names([*call.args, *(k.value for k in call.keywords)])
    own = {id(part) for part in walk(made)}
    rest = [part for part in walk(loop) if id(part) not in own]
    return any(name in given and not any(has(part, name) for part in rest) for name in names(results))


def names(items: Sequence[ast.expr]) -> set[str]:
    """Of some expressions, and of tuples among them."""
    parts = [part for item in items for part in (item.elts if isinstance(item, (ast.Tuple, ast.List)) else [item])]
    return {dotted(part) for part in parts} - {""}


def has(node: ast.AST, name: str) -> bool:
    """Whether something is bound to a name here, or a call receives it or is of a method of it."""
    if isinstance(node, ast.Call):
        return name in names([node.func.value if isinstance(node.func, ast.Attribute) else node.func, *node.args])
    stored = isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del))
    return stored and dotted(node.value if isinstance(node, ast.Subscript) else node) == name


def recurrent(model: Value) -> bool:
    """Whether a network is one of PyTorch's recurrent ones, or of a class with one that never cuts a graph."""
    if model.choice:  # of which another is loaded from a file, perhaps
        return any(recurrent(one.root()) for _, one in model.choice)
    if not model.lineage:
        return RECURRENT.fullmatch(model.maker) is not None
    parts = [part for cls in model.lineage for part in walk(cls) if isinstance(part, ast.Attribute)]
    methods = [method for cls in model.lineage for method in methods_of(cls).values()]
    passing = [part for method in methods if not MAKING.match(method.name) for part in walk(method)]
    cuts = any(isinstance(part, ast.Attribute) and CUTTING.search(part.attr) for part in passing)
    return any(RECURRENT.fullmatch(dotted(part)) for part in parts) and not cuts


def frees(backward: Event) -> bool:
    """Whether it is a plain backward pass, which frees the graph."""
    node, through = backward.node, backward.through
    given = 0 if through is None else 1  # an accelerator is given the loss
    known = through is None or through.kind in ("accelerator", "fabric")
    return isinstance(node, ast.Call) and known and len(node.args) == given and not node.keywords


def losses(backward: Occurrence) -> list[Value]:
    """The tensors with a graph that a loss is made of by arithmetic; of an object's attribute it may be another."""
    found = [one for one in made_of(backward.event.value) if one.roots and not one.choice]
    return [one for one in found if one.source or "." not in one.name]


def forwards(backward: Occurrence) -> list[Event]:
    value = backward.event.value
    return sources(value) if value is not None and not value.choice else []


def cut_inside(first: list[Event], second: list[Event]) -> bool:
    """Whether a network of the project's runs for each of two losses anew, and cuts graphs itself: perhaps for one."""
    twice = {e.value.root() for e in first if e.value is not None and e not in second}
    twice &= {e.value.root() for e in second if e.value is not None and e not in first}
    methods = [m for model in twice for cls in model.lineage for m in [methods_of(cls).get("forward")] if m is not None]
    return any(isinstance(n, ast.Attribute) and CUTTING.search(n.attr) for method in methods for n in walk(method))


def pieces_of(backward: Occurrence) -> frozenset[int]:
    return pieces(backward.event.value) if backward.event.value is not None else NO_ROOTS


def through_same(event: Event, trained: list[Value], pieces: list[frozenset[int]]) -> bool:
    """Whether a forward pass is one of a trained network, whose result one loss uses as a whole, or both a part of."""
    model = event.value
    whole = not all(event.parts & own for own in pieces) or bool(event.parts & pieces[0] & pieces[1] - {0})
    if model is None or not whole or len({one.root() for _, one in model.choice}) > 1:
        return False  # of several networks, which may not be one and the same twice
    return any(overlap(model, one) for one in trained)


def happened(scenario: Scenario, event: Event, first: Occurrence, second: Occurrence) -> bool:
    """Whether it happened before both backward passes, and not between them again."""
    places = scenario.places
    at = [places[id(s)] for s in scenario.of("forward") if s.event is event and s.k == first.k]
    return bool(at) and max(at) < places[id(first)] and not any(places[id(first)] < i < places[id(second)] for i in at)
