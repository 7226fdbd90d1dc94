"""What is left of a window at the end of an epoch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradlab.audit.rules import rule, uncertain
from gradlab.audit.trace.conditions import atoms
from gradlab.audit.trace.events import If, events, walk
from gradlab.audit.trace.training_loop import Unit


def stepping(unit: Unit) -> tuple[If, bool] | None:
    """The `if` whose body takes the step of a window, and whether it also knows the last batch of an epoch."""
    for item in walk(unit.body):
        if isinstance(item, If) and any(e.kind == "step" for e in events([*item.then, *item.other])):
            known = atoms(item.test)
            if any(a in unit.boundary for a in known):
                return item, any(a.kind == "last" or a.kind == "flag" for a in known)
    return None


def periodic(unit: Unit) -> bool:
    return bool(unit.boundary) and all(a.kind == "period" for a in unit.boundary)


@rule("GL307", on="unit")
def remainder_left(unit: Unit) -> Iterator[tuple[str, ast.AST]]:
    found = stepping(unit)
    if not periodic(unit) or found is None or found[1] or any(e.kind == "step" for e in unit.after):
        return
    if unit.loop is not None and isinstance(unit.loop.node, ast.For) and not uncertain(unit, "self", "optimizer"):
        if unit.loop.over is not None and unit.loop.over.kind == "enumerated":
            step = next(e for e in events([found[0]]) if e.kind == "step")
            yield step.path, step.node


@rule("GL308", on="unit")
def remainder_underscaled(unit: Unit) -> Iterator[tuple[str, ast.AST]]:
    found = stepping(unit)
    if not periodic(unit) or found is None:
        return
    backward = next((e for e in unit.events if e.kind == "backward"), None)
    if backward is None or backward.value is None or unit.loop is None:
        return
    divisors = [text for sign, text, _ in backward.value.data.get("factors", []) if sign == "/"]
    if unit.period not in divisors and not any(text == unit.period for text in divisors):
        return
    late = next((e for e in unit.after if e.kind == "step" and same_optimizer(e, unit)), None)
    if late is not None:
        yield late.path, late.node
    elif found[1]:
        yield backward.path, backward.node


def same_optimizer(event, unit: Unit) -> bool:
    return any(event.value is o for o in unit.optimizers())
