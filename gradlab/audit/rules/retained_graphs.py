"""Losses kept with their graphs."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradlab.audit.knowledge.losses import made_of
from gradlab.audit.rules import Hit, rule
from gradlab.audit.source.syntax import dotted, walk
from gradlab.audit.trace.events import Loop
from gradlab.audit.trace.scenarios import Run
from gradlab.audit.trace.values import Value


@rule("GL605")
def kept(run: Run) -> Iterator[Hit]:
    unit = run.unit
    marks = frozenset().union(*(roots(e.value) for e in [*unit.events, *unit.after] if e.kind == "backward"))
    for keep in run.of("keep"):
        value = keep.event.value
        if keep.event.data["mark"] in marks or keep.event.data["since"] >= unit.birth:
            continue  # it goes backward itself, or is begun anew for each update
        into, classes = keep.event.data["into"], keep.event.data["classes"]
        if value is None or (unit.loop is None and (not into.startswith("self.") or begun_anew(classes, into))):
            continue  # called once a batch by what is not seen
        if unit.loop is not None and reset(
            unit.loop, into, {id(e.node) for e in unit.events if e.kind in ("backward", "step")}
        ):
            continue
        known = value.data.get("source") == "criterion" and not value.data.get("guessed")
        for backward in run.of("backward"):
            shared = roots(value) & roots(backward.event.value)
            single = {*map(id, made_of(backward.event.value))}
            if backward.k != keep.k or not shared or not (known or shared == roots(value)):
                continue
            if value.data.get("one") or value.data.get("source") != "model" or {*map(id, made_of(value))} & single:
                yield Hit(keep, (backward,))
                break


def roots(value: Value | None) -> frozenset:
    return value.data.get("roots", frozenset()) if value is not None else frozenset()


def adds(node: ast.Assign, into: str) -> bool:
    """`total = total + loss`."""
    return any(dotted(part) == into for part in walk(node.value))


def begun_anew(classes: list[ast.ClassDef], into: str) -> bool:
    """Whether any method but __init__ empties an attribute, or binds it anew."""
    methods = [m for one in classes for m in one.body if isinstance(m, ast.FunctionDef) and m.name != "__init__"]
    for part in (part for method in methods for part in walk(method)):
        if isinstance(part, ast.Assign) and into in [dotted(t) for t in part.targets] and not adds(part, into):
            return True
        if isinstance(part, ast.Delete) and any(into in ast.unparse(t) for t in part.targets):
            return True
        if isinstance(part, ast.Call) and dotted(part.func) in (f"{into}.clear", f"{into}.pop"):
            return True
    return not classes


def reset(loop: Loop, into: str, acting: set[int]) -> bool:
    """Whether a sum is begun anew in each turn, or where the optimizer steps."""
    for part in walk(loop.node):
        bodies = [getattr(part, "body", None), getattr(part, "orelse", None)]
        for body in bodies:
            if not isinstance(body, list):
                continue
            anew = any(
                isinstance(n, ast.Assign) and into in [dotted(t) for t in n.targets] and not adds(n, into) for n in body
            )
            if anew and (part is loop.node or any(id(n) in acting for statement in body for n in walk(statement))):
                return True
    return False
