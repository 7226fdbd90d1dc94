"""What is left of a window at the end of an epoch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradlab.audit.rules.registry import loop_rule
from gradlab.audit.rules.reporting import uncertain
from gradlab.audit.trace.conditions import atoms
from gradlab.audit.trace.event_tree import If, Jump, events, walk
from gradlab.audit.trace.training_loop import TrainingLoop

COUNTER = re.compile(r"index\+\d+ (Eq|GtE|Lt|Gt) ")
"""A condition on a counter of micro-batches."""


def window_step(loop: TrainingLoop) -> tuple[If, bool] | None:
    """The `if` that decides whether a window ends, and whether it may also hold for the last batch of an epoch."""
    for item in walk(loop.body):
        inside = [*item.then, *item.other] if isinstance(item, If) else []
        passes = any(isinstance(part, Jump) and part.kind == "continue" for part in inside)
        if isinstance(item, If) and (passes or any(e.kind == "step" for e in events(inside))):
            known = atoms(item.test)
            if any(a in loop.boundary for a in known):
                return item, any(a.kind in ("last", "flag") and a not in loop.boundary for a in known)
    return None


def periodic(loop: TrainingLoop) -> bool:
    return bool(loop.boundary) and all(a.kind == "period" for a in loop.boundary)


def lengths(loop: TrainingLoop) -> set[str]:
    """Expressions of the window's length: that of a period, or what a counter is compared with."""
    counters = [a.key.split(" ", 2) for a in loop.boundary if COUNTER.match(a.key)]
    return {loop.period, *(words[2] for words in counters)}


def ends_early(loop: TrainingLoop) -> bool:
    """Whether the loop is left where no whole window is: `if i // n >= len(loader) // n: break`."""
    tests = [
        getattr(item.node, "test", None)
        for item in walk(loop.body)
        if isinstance(item, If) and any(isinstance(part, Jump) and part.kind == "break" for part in item.then)
    ]
    return any(isinstance(part, ast.FloorDiv) for test in tests if test is not None for part in ast.walk(test))


@loop_rule("GL307")
def remainder_left(loop: TrainingLoop) -> Iterator[tuple[str, ast.AST]]:
    found = window_step(loop)
    if not periodic(loop) or found is None or found[1] or any(e.kind == "step" for e in loop.after):
        return
    if ends_early(loop):
        return
    statement = loop.statement
    if statement is None or not isinstance(statement.node, ast.For) or uncertain(loop, "self", "optimizer"):
        return
    over = statement.over
    if over is not None and (over.kind == "enumerated" or (over.kind == "counted" and "len(" in (over.stop or ""))):
        step = next(e for e in loop.events if e.kind == "step")
        yield step.path, getattr(found[0].node, "test", step.node) if step.path == loop.path else step.node


@loop_rule("GL308")
def remainder_underscaled(loop: TrainingLoop) -> Iterator[tuple[str, ast.AST]]:
    found = window_step(loop)
    counted = bool(loop.boundary) and all(a.kind == "period" or COUNTER.match(a.key) for a in loop.boundary)
    if not counted or found is None or loop.statement is None:
        return
    backward = next((e for e in loop.events if e.kind == "backward"), None)
    if backward is None or backward.value is None:
        return
    if not any(f.sign == "/" and f.text in lengths(loop) for f in backward.value.factors):
        return
    optimizers = loop.optimizers()
    late = next((e for e in loop.after if e.kind == "step" and any(e.value is o for o in optimizers)), None)
    if late is not None:
        yield late.path, late.node
    elif found[1]:
        yield backward.path, backward.node
