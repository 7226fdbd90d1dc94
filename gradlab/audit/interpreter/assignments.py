"""Assignments: to names, onto a sum, and to gradients."""

from __future__ import annotations

import ast

from gradlab.audit.interpreter.binding import bind, name_result
from gradlab.audit.interpreter.parameters import refine
from gradlab.audit.knowledge.manual_updates import assign_gradient, descending, manual_step, weight_name, weights
from gradlab.audit.knowledge.retained_tensors import retain
from gradlab.audit.knowledge.tensor_arithmetic import combined
from gradlab.audit.knowledge.usage import usage
from gradlab.audit.source.syntax import dotted, walk
from gradlab.audit.trace.conditions import FALSE
from gradlab.audit.trace.engine import Engine
from gradlab.audit.trace.values import Value, births


def follow_assign(engine: Engine, node: ast.Assign) -> None:
    if any(assign_gradient(engine, node, target, node.value, None) for target in node.targets):
        return
    target = node.targets[0]
    if weights(target) is not target and weight_name(target) in descending(engine.scope.node):
        manual_step(engine, node, engine.value(weights(target)), [node.value], True)
        return
    if (augmented := as_augmented(node)) is not None:
        follow_augmented(engine, augmented)
        return
    value = assigned_value(engine, node, target)
    engine.remember(value, node.value)
    first = node.value.args[:1] if isinstance(node.value, ast.Call) else []
    if value.kind == "ddp" and engine.branches and [dotted(a) for a in first] == [dotted(target)]:
        value.root().wrapped = False  # the other branch calls the same name, rightly
    for each in node.targets:
        if (
            isinstance(each, ast.Attribute)
            and each.attr == "data"
            and (param := engine.value(each.value)).kind == "param"
        ):
            param.root().half_when = FALSE  # the weights may have another type now
        bind(engine, each, value)
        for name in map(dotted, each.elts if isinstance(each, (ast.Tuple, ast.List)) else [each]):
            engine.assigned[(id(engine.scope.node), name)] = next(births)


def assigned_value(engine: Engine, node: ast.Assign, target: ast.expr) -> Value:
    """The value, with the kind and the name that its target gives it."""
    sides = [node.value.body, node.value.orelse] if isinstance(node.value, ast.IfExp) else [node.value]
    averaging = any(averages(node.targets, side) for side in sides)
    old = engine.value(target) if averaging else None
    value = engine.value(node.value)
    if old is not None and (mark := retain(engine, node, target, old, value)) is not None:
        value = value.derived("tensor", roots=value.roots | {mark}, traced=value.traced)
    if value.kind == "unknown" and value.made and isinstance(target, (ast.Name, ast.Attribute)):
        name_result(engine, target, value)
    elif value.kind == "unknown" and isinstance(target, ast.Name):
        value.kind = usage(engine.scope.node).kind(target.id) or "unknown"
    if value.kind in ("unknown", "number") and isinstance(target, (ast.Name, ast.Attribute)) and not value.name:
        value.name = dotted(target)
    return value


def averages(targets: list[ast.expr], value: ast.expr) -> bool:
    """`mean = 0.9 * mean + 0.1 * loss`: the old value of a name goes into the new one by arithmetic alone."""
    target = targets[0]
    if not isinstance(value, ast.BinOp) or len(targets) > 1:
        return False
    if not isinstance(target, (ast.Name, ast.Attribute)) or not dotted(target):
        return False

    def inside(part: ast.expr) -> bool:
        if isinstance(part, ast.BinOp):
            return inside(part.left) or inside(part.right)
        return dotted(part) == dotted(target)

    parts = [part for part in walk(value) if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Add)]
    return bool(parts) and inside(value)


def as_augmented(node: ast.Assign) -> ast.AugAssign | None:
    """`total = total + loss` is `total += loss`."""
    value, target = node.value, node.targets[0]
    if len(node.targets) > 1 or not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
        return None
    if not isinstance(target, (ast.Name, ast.Attribute, ast.Subscript)):
        return None
    if isinstance(target, ast.Subscript) and not isinstance(target.slice, ast.Constant):
        return None
    if ast.unparse(value.left) != ast.unparse(target):
        return None
    return ast.copy_location(ast.AugAssign(target, value.op, value.right), node)


def follow_annotated(engine: Engine, node: ast.AnnAssign) -> None:
    if node.value is not None:
        value = engine.value(node.value)
        if value.kind == "unknown":
            refine(engine, value, dotted(node.target), usage(engine.scope.node), node.annotation)
        bind(engine, node.target, value)


def follow_augmented(engine: Engine, node: ast.AugAssign) -> None:
    if assign_gradient(engine, node, node.target, node.value, node.op):
        return
    old, value = engine.value(node.target), engine.value(node.value)
    down = isinstance(node.op, ast.Sub)
    if old.kind != "param" and weight_name(node.target) in descending(engine.scope.node):
        manual_step(engine, node, engine.value(weights(node.target)), [node.value], down)
        return
    mark: int | None = None
    if isinstance(node.op, ast.Add):
        if old.kind in ("index", "number", "unknown") and value.kind == "number" and value.value == 1:
            bind(engine, node.target, Value("index", old.name, offset=old.offset + 1))
            return
        mark = retain(engine, node, node.target, old, value)
    if old.kind == "param" and isinstance(node.op, (ast.Sub, ast.Add)):
        manual_step(engine, node, old, [node.value], down)
        return
    made = combined(engine, node.op, old, value, node.value)
    if mark is not None:
        made.roots = made.roots | {mark}
    engine.remember(made, ast.BinOp(node.target, node.op, node.value))
    bind(engine, node.target, made)
