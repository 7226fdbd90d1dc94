"""Losses that are kept with their graphs."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from gradlab.audit.rules.registry import Hit, scenario_rule
from gradlab.audit.source.syntax import dotted, walk
from gradlab.audit.trace.event_tree import Loop
from gradlab.audit.trace.replay import Occurrence
from gradlab.audit.trace.scenarios import Scenario
from gradlab.audit.trace.tensors import made_of
from gradlab.audit.trace.training_loop import TrainingLoop
from gradlab.audit.trace.values import NO_ROOTS, Event, Value


@scenario_rule("GL605")
def loss_kept_with_graph(scenario: Scenario) -> Iterator[Hit]:
    loop = scenario.loop
    marks = NO_ROOTS.union(*(roots(e.value) for e in [*loop.events, *loop.after] if e.kind == "backward"))
    for keep in scenario.of("keep"):
        if keep.event.mark in marks or reset_in_time(loop, keep.event):
            continue  # it goes backward itself, or is reset for each update
        backward = next((b for b in scenario.of("backward") if b.k == keep.k and keeps_graph(keep, b)), None)
        if backward is not None:
            yield Hit(keep, (backward,))


def keeps_graph(keep: Occurrence, backward: Occurrence) -> bool:
    """Whether what is kept shares the graph of a backward pass, and is a single number."""
    value, loss = keep.event.value, backward.event.value
    if value is None:
        return False
    shared = roots(value) & roots(loss)
    known = value.source == "criterion" and not value.guessed
    if not shared or not (known or shared == roots(value)):
        return False
    single = {*map(id, made_of(loss))}
    return value.scalar or value.source != "model" or bool({*map(id, made_of(value))} & single)


def roots(value: Value | None) -> frozenset[int]:
    return value.roots if value is not None else NO_ROOTS


def reset_in_time(loop: TrainingLoop, keep: Event) -> bool:
    """Whether the sum is reset for each update, or may be by code that is not seen."""
    if keep.since >= loop.birth:
        return True
    if loop.statement is None:  # called once a batch
        return not keep.into.startswith("self.") or reset_by_method(keep.classes, keep.into)
    acting = {id(e.node) for e in loop.events if e.kind in ("backward", "step")}
    return reset_in_loop(loop.statement, keep.into, acting)


def resets(node: ast.AST, into: str) -> bool:
    """`total = 0`, not `total = total + loss`."""
    if not isinstance(node, ast.Assign) or into not in [dotted(t) for t in node.targets]:
        return False
    return not any(dotted(part) == into for part in walk(node.value))


def reset_by_method(classes: Sequence[ast.ClassDef], into: str) -> bool:
    """Whether any method but __init__ empties an attribute, or binds it anew."""
    methods = [m for one in classes for m in one.body if isinstance(m, ast.FunctionDef) and m.name != "__init__"]
    for part in (part for method in methods for part in walk(method)):
        if resets(part, into):
            return True
        if isinstance(part, ast.Delete) and any(into in ast.unparse(t) for t in part.targets):
            return True
        if isinstance(part, ast.Call) and dotted(part.func) in (f"{into}.clear", f"{into}.pop"):
            return True
    return not classes


def reset_in_loop(loop: Loop, into: str, acting: set[int]) -> bool:
    """Whether a sum is reset in each iteration, or where the optimizer steps."""
    for part in walk(loop.node):
        for body in (getattr(part, "body", None), getattr(part, "orelse", None)):
            if not isinstance(body, list) or not any(resets(n, into) for n in body):
                continue
            if part is loop.node or any(id(n) in acting for statement in body for n in walk(statement)):
                return True
    return False
