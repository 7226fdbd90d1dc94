"""Assignments: to names, onto a sum, and to gradients."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gradlab.audit.interpreter.binding import bind, name_result
from gradlab.audit.interpreter.parameters import refine
from gradlab.audit.knowledge import losses as effects
from gradlab.audit.knowledge.manual_updates import descending, plain, weights
from gradlab.audit.knowledge.tensor_arithmetic import combined
from gradlab.audit.source.syntax import dotted, walk
from gradlab.audit.trace.scope import usage
from gradlab.audit.trace.values import Value, births

if TYPE_CHECKING:
    from gradlab.audit.interpreter.interpreter import Interpreter


def do_Assign(it: Interpreter, node: ast.Assign) -> None:
    for target in node.targets:
        if effects.assign_gradient(it, node, target, node.value, None):
            return
    target = node.targets[0]
    if weights(target) is not target and plain(target) in descending(it.scope.node):
        effects.descended(it, node, it.value(weights(target)), [node.value], True)
        return
    if (again := onto_itself(node)) is not None:
        do_AugAssign(it, again)
        return
    sides = [node.value.body, node.value.orelse] if isinstance(node.value, ast.IfExp) else [node.value]
    averaging = any(averages(ast.copy_location(ast.Assign(node.targets, side), node)) for side in sides)
    old = it.value(node.targets[0]) if averaging else None
    value = it.value(node.value)
    if old is not None and (mark := effects.kept(it, node, node.targets[0], old, value)) is not None:
        value = Value("tensor", "", {**value.data, "roots": value.data["roots"] | {mark}})
    if len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        it.origins[(id(it.scope), node.targets[0].id)] = node.value
    if value.kind == "unknown" and value.data.get("made") and isinstance(node.targets[0], (ast.Name, ast.Attribute)):
        name_result(it, node.targets[0], value)
    elif value.kind == "unknown" and isinstance(node.targets[0], ast.Name):
        value.kind = usage(it.scope.node).kind(node.targets[0].id) or "unknown"
    if (
        value.kind in ("unknown", "number")
        and isinstance(node.targets[0], (ast.Name, ast.Attribute))
        and not value.name
    ):
        value.name = dotted(node.targets[0])
    given = node.value.args[:1] if isinstance(node.value, ast.Call) else []
    if value.kind == "ddp" and it.branches and [dotted(a) for a in given] == [dotted(node.targets[0])]:
        value.root().data.pop("wrapped", None)  # the other branch calls the same name, rightly
    for target in node.targets:
        bind(it, target, value)
        it.bound[(id(it.scope.node), dotted(target))] = next(births)


def averages(node: ast.Assign) -> bool:
    """`mean = 0.9 * mean + 0.1 * loss`: what a name held goes into what it holds, by arithmetic alone."""

    def inside(part: ast.expr) -> bool:
        if isinstance(part, ast.BinOp):
            return inside(part.left) or inside(part.right)
        return dotted(part) == dotted(node.targets[0])

    target = node.targets[0]
    if len(node.targets) > 1 or not isinstance(target, (ast.Name, ast.Attribute)) or not dotted(target):
        return False
    parts = [part for part in walk(node.value) if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Add)]
    return bool(parts) and isinstance(node.value, ast.BinOp) and inside(node.value)


def onto_itself(node: ast.Assign) -> ast.AugAssign | None:
    """`total = total + loss` is `total += loss`."""
    made, target = node.value, node.targets[0]
    if len(node.targets) > 1 or not isinstance(made, ast.BinOp) or not isinstance(made.op, ast.Add):
        return None
    if not isinstance(target, (ast.Name, ast.Attribute)) or dotted(made.left) != dotted(target):
        return None
    return ast.copy_location(ast.AugAssign(target, made.op, made.right), node)


def do_AnnAssign(it: Interpreter, node: ast.AnnAssign) -> None:
    if node.value is not None:
        value = it.value(node.value)
        if value.kind == "unknown":
            refine(it, value, dotted(node.target), usage(it.scope.node), node.annotation)
        bind(it, node.target, value)


def do_AugAssign(it: Interpreter, node: ast.AugAssign) -> None:
    if effects.assign_gradient(it, node, node.target, node.value, node.op):
        return
    old, value = it.value(node.target), it.value(node.value)
    if old.kind != "param" and plain(node.target) in descending(it.scope.node):
        effects.descended(it, node, it.value(weights(node.target)), [node.value], isinstance(node.op, ast.Sub))
        return
    kept: int | None = None
    if isinstance(node.op, ast.Add):
        if old.kind in ("index", "number", "unknown") and value.kind == "number" and value.data.get("value") == 1:
            offset = old.data.get("offset", 0)
            bind(it, node.target, Value("index", old.name, {"offset": offset + 1}))
            return
        kept = effects.kept(it, node, node.target, old, value)
    if old.kind == "param" and isinstance(node.op, (ast.Sub, ast.Add)):
        effects.descended(it, node, old, [node.value], isinstance(node.op, ast.Sub))
        return
    made = combined(it, node.op, old, value, node.value)
    if kept is not None:
        made.data["roots"] = made.data.get("roots", frozenset()) | {kept}
    bind(it, node.target, made)
