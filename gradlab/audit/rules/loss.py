"""Losses kept with their graphs."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradlab.audit.known import dotted
from gradlab.audit.rules import Hit, rule
from gradlab.audit.runs import Run
from gradlab.audit.tree import Loop
from gradlab.audit.values import Value
from gradlab.audit.walking import walk


@rule("GL605")
def kept(run: Run) -> Iterator[Hit]:
    unit = run.unit
    if unit.loop is None:
        return
    marks = frozenset().union(*(roots(e.value) for e in [*unit.events, *unit.after] if e.kind == "backward"))
    for keep in run.of("keep"):
        value = keep.event.value
        if keep.event.data["mark"] in marks or keep.event.data["since"] >= unit.birth:
            continue  # it goes backward itself, or is begun anew for each update
        if value is None or reset(unit.loop, keep.event.data["into"], {id(e.node) for e in unit.events}):
            continue
        known = value.data.get("source") == "criterion" and not value.data.get("guessed")
        for backward in run.of("backward"):
            shared = roots(value) & roots(backward.event.value)
            if backward.k != keep.k or not shared or not (known or shared == roots(value)):
                continue
            if (
                keep.event.data["named"]
                or value.data.get("one")
                or value is backward.event.value
                or value.data.get("source") != "model"
            ):
                yield Hit(keep, (backward,))
                break


def roots(value: Value | None) -> frozenset:
    return value.data.get("roots", frozenset()) if value is not None else frozenset()


def adds(node: ast.Assign, into: str) -> bool:
    """`total = total + loss`."""
    return any(dotted(part) == into for part in walk(node.value))


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
