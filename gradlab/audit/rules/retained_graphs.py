"""Losses that are kept with their graphs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from gradlab.audit.rules.registry import Hit, scenario_rule
from gradlab.audit.source.syntax import called_name, dotted, walk
from gradlab.audit.trace.event_tree import Loop
from gradlab.audit.trace.replay import Occurrence
from gradlab.audit.trace.scenarios import Scenario
from gradlab.audit.trace.tensors import made_of
from gradlab.audit.trace.training_loop import TrainingLoop
from gradlab.audit.trace.values import NO_ROOTS, Event, Value

BATCHES = re.compile(r"load|batch|(^|_)dl\b", re.I)
"""Names of what a loop over batches is over."""


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
    if value.unsure:  # a number, perhaps, but not as a term of the loss
        terms = loss.parts or (loss,) if loss is not None else ()
        same = any(value.pieces and one.pieces == value.pieces for one in terms)
        return same or any(one.source == "criterion" and id(one) in single for one in made_of(value))
    return value.scalar or value.source != "model" or bool({*map(id, made_of(value))} & single)


def roots(value: Value | None) -> frozenset[int]:
    return value.roots if value is not None else NO_ROOTS


def reset_in_time(loop: TrainingLoop, keep: Event) -> bool:
    """Whether the sum is reset for each update or batch, or may be by code that is not seen."""
    if keep.since >= loop.birth:
        return True
    if loop.statement is None:  # called once a batch
        return not keep.into.startswith("self.") or reset_by_method(keep.classes, keep.into)
    acting = {id(e.node) for e in loop.events if e.kind in ("backward", "step")}
    if reset_in_loop(loop.statement, keep, acting):
        return True
    batches = next((outer for outer in reversed(loop.outer) if inside_batch(loop.statement, outer)), None)
    return batches is not None and (keep.since >= batches.birth or reset_in_loop(batches, keep, set()))


def inside_batch(loop: Loop, outer: Loop) -> bool:
    """Whether a loop is over parts or repetitions of one batch of another loop."""
    if not isinstance(loop.node, ast.For) or not isinstance(outer.node, ast.For):
        return False
    if not BATCHES.search(ast.unparse(outer.node.iter)):
        return False
    bound = {part.id for part in walk(outer.node.target) if isinstance(part, ast.Name)}
    inside = {part.id for part in walk(loop.node.iter) if isinstance(part, ast.Name) and "load" not in part.id}
    return called_name(loop.node.iter) == "range" or bool(bound & inside)


def resets(node: ast.AST, into: str, classes: Sequence[ast.ClassDef] = ()) -> bool:
    """`total = 0`, `total = total.detach()` or `items.clear()`, not `total = total + loss`."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        name = dotted(node.value.func)
        methods = [
            m for one in classes for m in one.body if isinstance(m, ast.FunctionDef) and f"self.{m.name}" == name
        ]
        return name == f"{into}.clear" or any(resets(part, into) for method in methods for part in method.body)
    if not isinstance(node, ast.Assign) or into not in [dotted(t) for target in node.targets for t in flat(target)]:
        return False
    kept = isinstance(node.value, ast.Call) and dotted(node.value.func) == f"{into}.detach"
    return kept or not any(dotted(part) == into for part in walk(node.value))


def flat(target: ast.expr) -> list[ast.expr]:
    return list(target.elts) if isinstance(target, (ast.Tuple, ast.List)) else [target]


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


def reset_in_loop(loop: Loop, keep: Event, acting: set[int]) -> bool:
    """Whether a sum is reset in each iteration, or as often as the optimizer steps."""
    periods = {"sync_gradients"}
    conditional: list[ast.AST] = []
    for part in walk(loop.node):
        acts = any(id(n) in acting for n in walk(part)) if isinstance(part, ast.If) else False
        if acts and isinstance(part, ast.If):
            periods |= moduli(part.test)
        for body in (getattr(part, "body", None), getattr(part, "orelse", None)):
            if not isinstance(body, list) or not any(resets(n, keep.into, keep.classes) for n in body):
                continue
            if part is loop.node or any(id(n) in acting for statement in body for n in walk(statement)):
                return True
            conditional.append(part)
    return any(isinstance(part, ast.If) and periods & moduli(part.test) for part in conditional)


def moduli(test: ast.expr) -> set[str]:
    """What the tests of a period divide by; Accelerate's own says that it steps."""
    if any(getattr(p, "attr", "") == "sync_gradients" for p in walk(test)):
        return {"sync_gradients"}
    return {ast.unparse(p.right) for p in walk(test) if isinstance(p, ast.BinOp) and isinstance(p.op, ast.Mod)}
