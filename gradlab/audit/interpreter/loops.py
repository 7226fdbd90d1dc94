"""Loops: what each turn binds, what is counted up, and which are written out."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gradlab.audit.interpreter.binding import bind, element
from gradlab.audit.interpreter.parameters import refine
from gradlab.audit.source.syntax import dotted, walk
from gradlab.audit.trace.events import Loop
from gradlab.audit.trace.scope import usage
from gradlab.audit.trace.values import CALLED, Value, births, number, several

if TYPE_CHECKING:
    from gradlab.audit.interpreter.interpreter import Interpreter


WRITTEN_OUT = {"optimizer", "scheduler", "model", "ddp", "scaler", "list", "instance", *CALLED}
ONCE = {"params", "groups", "optimizers", "modules", "optimizer", "scheduler"}
"""What a loop is over that is no iteration of the training."""


def do_For(it: Interpreter, node: ast.For) -> None:
    over = it.value(node.iter)
    turns = turned(it, node, over)
    for item in turns:
        bind(it, node.target, item)
        it.block(node.body)
    if not turns:
        loop(it, node, over)


def turned(it: Interpreter, node: ast.For, over: Value) -> list[Value]:
    """What each turn binds, of a loop over a few optimizers, models or schedulers; such a loop is written out."""
    if over.kind == "enumerated":
        return [several([number(i), item]) for i, item in enumerate(turned(it, node, over.data["inner"]))]
    if over.kind == "zipped":
        columns = [turned(it, node, item) for item in over.data["items"]]
        count = min((len(column) for column in columns if column), default=0)
        pairs = list(zip(columns, over.data["items"]))
        return [several([c[i] if c else element(it, node.iter, v) for c, v in pairs]) for i in range(count)]
    items = over.data["items"] if over.kind == "list" else []
    return items if len(items) <= 4 and all(item.kind in WRITTEN_OUT for item in items) else []


def do_While(it: Interpreter, node: ast.While) -> None:
    it.value(node.test)
    loop(it, node, None)


def loop(it: Interpreter, node: ast.For | ast.While | ast.AsyncFor, over: Value | None) -> None:
    entered, it.entered = it.entered, next(births)
    carried(it, node)
    turn = element(it, node.iter, over) if isinstance(node, (ast.For, ast.AsyncFor)) and over is not None else None
    if turn is not None and not isinstance(node, ast.While):
        if turn.kind == "unknown" and "choice" not in turn.data and over is not None and over.kind == "list":
            refine(it, turn, dotted(node.target), usage(it.scope.node))
        bind(it, node.target, turn)
    birth = it.entered
    before = dict(it.scope.names)
    body = it.collect(lambda: it.block(node.body))
    for name, value in before.items():
        if it.scope.names.get(name, value).kind in ("none", "number") and value.kind not in ("unknown", "index"):
            it.scope.names[name] = value
    turn = it.scope.names.get(getattr(getattr(node, "target", None), "id", ""))
    once = over is not None and (
        (turn is not None and turn.kind in ("optimizer", "scheduler"))
        or over.kind in ONCE
        or (over.kind == "zipped" and any(v.kind in ONCE for v in over.data["items"]))
    )
    it.out.append(Loop(node, it.module.path, body, birth, over, once))
    it.entered = entered
    it.block(node.orelse)


def carried(it: Interpreter, node: ast.AST) -> None:
    """Names that the loop counts up are its index; others that it assigns anew are not what they were before it."""
    for part in walk(node):
        if isinstance(part, ast.AugAssign) and isinstance(part.op, ast.Add) and isinstance(part.target, ast.Name):
            old = it.scope.find(part.target.id)
            one = isinstance(part.value, ast.Constant) and part.value.value == 1
            if one and (old is None or old.kind in ("number", "unknown", "index")):
                it.scope.names[part.target.id] = Value("index", part.target.id, {"offset": 0})
        elif isinstance(part, ast.Assign):
            for target in part.targets:
                old = it.scope.names.get(target.id) if isinstance(target, ast.Name) else None
                flag = old is not None and old.kind == "number" and isinstance(old.data["value"], bool)
                if isinstance(target, ast.Name) and old is not None and (flag or old.kind in ("bool", "none")):
                    it.scope.names[target.id] = Value("unknown", target.id, {"before": old.birth})
