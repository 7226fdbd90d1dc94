"""What is left of a window at the end of an epoch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradlab.audit.rules.registry import loop_rule
from gradlab.audit.rules.reporting import uncertain
from gradlab.audit.trace.conditions import atoms
from gradlab.audit.trace.event_tree import If, events, walk
from gradlab.audit.trace.training_loop import TrainingLoop


def window_step(loop: TrainingLoop) -> tuple[If, bool] | None:
    """The `if` whose body steps at the end of a window, and whether it may also hold for the last batch of an epoch."""
    for item in walk(loop.body):
        if isinstance(item, If) and any(e.kind == "step" for e in events([*item.then, *item.other])):
            known = atoms(item.test)
            if any(a in loop.boundary for a in known):
                return item, any(a.kind in ("last", "flag") for a in known)
    return None


def periodic(loop: TrainingLoop) -> bool:
    return bool(loop.boundary) and all(a.kind == "period" for a in loop.boundary)


@loop_rule("GL307")
def remainder_left(loop: TrainingLoop) -> Iterator[tuple[str, ast.AST]]:
    found = window_step(loop)
    if not periodic(loop) or found is None or found[1] or any(e.kind == "step" for e in loop.after):
        return
    statement = loop.statement
    if statement is None or not isinstance(statement.node, ast.For) or uncertain(loop, "self", "optimizer"):
        return
    if statement.over is not None and statement.over.kind == "enumerated":
        step = next(e for e in events([found[0]]) if e.kind == "step")
        yield step.path, getattr(found[0].node, "test", step.node) if step.path == loop.path else step.node


@loop_rule("GL308")
def remainder_underscaled(loop: TrainingLoop) -> Iterator[tuple[str, ast.AST]]:
    found = window_step(loop)
    if not periodic(loop) or found is None or loop.statement is None:
        return
    backward = next((e for e in loop.events if e.kind == "backward"), None)
    if backward is None or backward.value is None:
        return
    if not any(f.sign == "/" and f.text == loop.period for f in backward.value.factors):
        return
    optimizers = loop.optimizers()
    late = next((e for e in loop.after if e.kind == "step" and any(e.value is o for o in optimizers)), None)
    if late is not None:
        yield late.path, late.node
    elif found[1]:
        yield backward.path, backward.node
