"""Loops: what each iteration binds, what is counted, and which loops are unrolled."""

from __future__ import annotations

import ast
import re

from gradlab.audit.interpreter.binding import bind
from gradlab.audit.interpreter.parameters import refine
from gradlab.audit.interpreter.window_periods import is_entry
from gradlab.audit.knowledge.usage import usage
from gradlab.audit.source.syntax import dotted, walk
from gradlab.audit.trace.engine import Engine
from gradlab.audit.trace.event_tree import Loop
from gradlab.audit.trace.iterables import element, number, several, spend
from gradlab.audit.trace.values import CALLABLE, Value, births

UNROLLED = {"optimizer", "scheduler", "model", "ddp", "scaler", "list", "instance", *CALLABLE}
LONGEST, FUNCTIONS = 4, 8
"""Items of the longest list whose loop is unrolled, and of the longest one of functions: the phases of an update."""
BATCHES = re.compile(r"load|batch|data", re.I)
"""Names of what batches come from."""
LOSSES = re.compile(r"loss|out|pred|feat|hidden|state|grad|logit", re.I)
"""Names of what is computed by networks."""
ONCE = {"params", "groups", "optimizers", "modules", "optimizer", "scheduler"}
"""What a loop is over that is no iteration of the training."""


def follow_for(engine: Engine, node: ast.For) -> None:
    over = engine.value(node.iter)
    items = unrolled(over)
    for item in items:
        bind(engine, node.target, item)
        engine.block(node.body)
    if not items:
        follow_loop(engine, node, over)
    spend(engine.branches, over)


def unrolled(over: Value, most: int = LONGEST) -> list[Value]:
    """What each iteration binds, of a loop over a few optimizers, models or schedules; nothing for other loops."""
    if over.kind == "enumerated":
        return [several([number(i), item]) for i, item in enumerate(unrolled(over.inner, most))]
    if over.kind == "zipped":
        columns = [unrolled(item, most) for item in over.items]
        count = min((len(column) for column in columns if column), default=0)
        pairs = list(zip(columns, over.items))
        return [several([column[i] if column else element(v) for column, v in pairs]) for i in range(count)]
    items = over.items if over.kind == "list" else []
    most = FUNCTIONS if all(item.kind in CALLABLE for item in items) else most
    return items if len(items) <= most and all(item.kind in UNROLLED for item in items) else []


def follow_while(engine: Engine, node: ast.While) -> None:
    engine.value(node.test)
    follow_loop(engine, node, None)


def follow_loop(engine: Engine, node: ast.For | ast.While | ast.AsyncFor, over: Value | None) -> None:
    outer, engine.entered = engine.entered, next(births)
    birth = engine.entered
    forget_assigned(engine, node)
    if not isinstance(node, ast.While) and over is not None:
        item = element(over)
        is_batch(over, item)
        if item.kind == "unknown" and not item.choice and over.kind == "list":
            refine(engine, item, dotted(node.target), usage(engine.scope.node))
        bind(engine, node.target, item)
    before = dict(engine.scope.names)
    body = engine.collect(lambda: engine.block(node.body))
    for name, value in before.items():
        if engine.scope.names.get(name, value).kind in ("none", "number") and value.kind not in ("unknown", "index"):
            engine.scope.names[name] = value
    engine.out.append(Loop(node, engine.module.path, body, birth, over, is_once(engine, node, over)))
    engine.entered = outer
    engine.block(node.orelse)


def is_batch(over: Value, item: Value) -> None:
    """A batch of a loader, or of what is given and may be one, has no graph."""
    inner = over.inner if over.kind == "enumerated" else over
    may_be = inner.given or inner.acting is False or BATCHES.search(inner.name)
    given = inner.kind == "unknown" and may_be and not LOSSES.search(inner.name)
    if inner.kind == "loader" or given:
        for one in item.items or [item]:
            one.traced = one.traced or one.kind == "unknown"


def is_once(engine: Engine, node: ast.AST, over: Value | None) -> bool:
    """Whether a loop is over parameters, optimizers or schedules."""
    if over is None:
        return False
    item = engine.scope.names.get(getattr(getattr(node, "target", None), "id", ""))
    return (
        (item is not None and item.kind in ("optimizer", "scheduler"))
        or over.kind in ONCE
        or (over.kind == "zipped" and any(v.kind in ONCE for v in over.items))
    )


def is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def is_one(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 1


def forget_assigned(engine: Engine, node: ast.AST) -> None:
    """Names that the loop counts up are indices; flags that it assigns are not what they were before it."""
    for part in walk(node):
        if isinstance(part, ast.AugAssign) and isinstance(part.op, ast.Add) and is_one(part.value):
            named = isinstance(part.target, ast.Name)
            old = engine.scope.find(part.target.id) if isinstance(part.target, ast.Name) else None
            if is_entry(part.target):
                named, old = True, engine.value(part.target)
            if named and (old is None or old.kind in ("number", "unknown", "index")):
                bind(engine, part.target, Value("index", ast.unparse(part.target)))
        elif isinstance(part, ast.Assign):
            for target in part.targets:
                names = engine.scope.home(getattr(target, "id", "")).names
                old = names.get(target.id) if isinstance(target, ast.Name) else None
                other = is_none(part.value) or isinstance(part.value, ast.Name)  # `last_step = i`
                flag = old is not None and old.kind == "number" and (isinstance(old.value, (bool, str)) or other)
                if isinstance(target, ast.Name) and old is not None and (flag or old.kind in ("bool", "none")):
                    names[target.id] = Value("unknown", target.id, before=old.birth)
