"""Losses that are divided by the number of targets of a micro-batch: one of several ranks, or none at all."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradlab.audit.knowledge.tensor_arithmetic import terms
from gradlab.audit.rules.accumulation import counts_own
from gradlab.audit.rules.distributed import calls_wrapper
from gradlab.audit.rules.registry import Hit, scenario_rule
from gradlab.audit.rules.reporting import uncertain
from gradlab.audit.source.syntax import dotted, walk
from gradlab.audit.trace.replay import Occurrence
from gradlab.audit.trace.scenarios import Scenario
from gradlab.audit.trace.tensors import made_of
from gradlab.audit.trace.training_loop import TrainingLoop
from gradlab.audit.trace.values import Factor, Value


def of_mask(factor: Factor, loop: TrainingLoop, backward: Occurrence) -> bool:
    """Whether a factor divides by the sum of a mask of this micro-batch, which differs from one to the next."""
    window = loop.in_window.get(id(backward.event))
    return factor.value.summed and counts_own(factor, window.birth if window is not None else loop.birth)


@scenario_rule("GL507")
def reduced_before_backward(scenario: Scenario) -> Iterator[Hit]:
    models = [event.value for event in scenario.loop.events if event.kind == "forward" and event.value is not None]
    if not calls_wrapper(scenario.loop) and not any(model.root().sharded for model in models):
        return
    for average in scenario.of("average"):
        for backward in scenario.after(average):
            if (
                backward.k == average.k
                and backward.kind == "backward"
                and average.event.value in made_of(backward.event.value)
            ):
                yield Hit(average, (backward,))
                break


@scenario_rule("GL508")
def mean_per_rank(scenario: Scenario) -> Iterator[Hit]:
    if not calls_wrapper(scenario.loop) or uncertain(scenario.loop, "tensor"):
        return
    for backward in scenario.of("backward"):
        value = backward.event.value
        for _, own, others in means(value, scenario.loop, backward):
            if own and not weighted(others, scenario.loop):
                files = (backward.event.path, *(frame.module.path for frame in backward.event.frames))
                here = own[0].path in files  # of the loop, or of what calls it; else the file of the loop is judged
                yield Hit(backward, (), own[0].node, own[0].path, made=True) if here else Hit(backward)
                break


def means(
    loss: Value | None, loop: TrainingLoop, backward: Occurrence
) -> Iterator[tuple[Value, list[Factor], list[Factor]]]:
    """Each term of a loss, with the factors that divide it by the sum of a mask, and with its others."""
    for term in terms(loss) if loss is not None else ():
        own = [f for f in term.factors if of_mask(f, loop, backward)]
        masks = [f.value.counted for f in own]
        yield term, own, [f for f in term.factors if f not in own and all(f.value is not mask for mask in masks)]


def weighted(factors: list[Factor], loop: TrainingLoop) -> bool:
    """Whether a term is multiplied with what may be its share of the tokens: no number that is always the same."""
    return any(f.sign == "*" and not f.each and (f.value.of_processes or f.value.birth > loop.birth) for f in factors)


@scenario_rule("GL607")
def no_target(scenario: Scenario) -> Iterator[Hit]:
    for backward in scenario.of("backward"):
        value = backward.event.value
        for factor in value.factors if value is not None else ():
            if of_mask(factor, scenario.loop, backward) and not factor.value.positive:
                if not asked(scenario.loop, factor):
                    yield Hit(backward, (), factor.node, factor.path, made=True)
                    break


COUNTS = r"\.(sum|any|all|numel|nonzero|count_nonzero)\(|isnan|isfinite|\blen\("
OF_ITSELF = re.compile(r"\.(mean|median|quantile|max|min|amax|amin|topk|kthvalue)\(")


def asked(loop: TrainingLoop, factor: Factor) -> bool:
    """Whether a condition of the loop looks at the number of targets, or at whether there are any.

    It may do so by a name. A tensor that is compared with its own mean or largest element holds for some.
    """
    roots: list[ast.AST] = [loop.statement.node] if loop.statement is not None else []
    roots += [frame.call for e in loop.events for frame in e.frames if loop.statement is None]
    parts = [part for root in roots for part in walk(root)]
    made = [part for part in parts if isinstance(part, ast.Assign)]
    texts = [(dotted(t), ast.unparse(each.value)) for each in made for t in each.targets]
    name = factor.value.name
    pattern = re.compile(COUNTS + (rf"|\b{re.escape(name)}\b" if name else ""))
    own = set(re.findall(r"[A-Za-z_]\w*", f"{factor.text} {ast.unparse(factor.node)}"))
    counts = {n for n, text in texts if n and pattern.search(text) and own & set(re.findall(r"[A-Za-z_]\w*", text))}
    if any(OF_ITSELF.search(text) for each, text in [*texts, (factor.text, factor.text)] if each == factor.text):
        return True
    for part in parts:
        if isinstance(part, (ast.If, ast.IfExp, ast.While)):
            if pattern.search(ast.unparse(part.test)) or any(dotted(n) in counts for n in walk(part.test)):
                return True
    return False
