"""Statements: what each binds, and the loops, branches and regions that it makes."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from gradlab.audit import effects
from gradlab.audit.binding import bind, element, name_result
from gradlab.audit.choices import either
from gradlab.audit.conditions import Atom
from gradlab.audit.effects import combined
from gradlab.audit.entering import refine
from gradlab.audit.formulas import formula
from gradlab.audit.known import dotted
from gradlab.audit.project import Function
from gradlab.audit.scope import usage
from gradlab.audit.tree import If, Jump, Loop
from gradlab.audit.values import Value, births, several

if TYPE_CHECKING:
    from gradlab.audit.interpreter import Interpreter


SEVERAL = ("optimizer", "scheduler", "model", "ddp", "scaler", "list")


def do_Expr(it: Interpreter, node: ast.Expr) -> None:
    it.value(node.value)


def do_Return(it: Interpreter, node: ast.Return) -> None:
    value = it.value(node.value) if node.value else Value("none", "None")
    if it.returned:
        it.returned[-1].append(value)
    it.out.append(Jump("return", node))


def do_Raise(it: Interpreter, node: ast.Raise) -> None:
    it.out.append(Jump("raise", node))


def do_Continue(it: Interpreter, node: ast.Continue) -> None:
    it.out.append(Jump("continue", node))


def do_Break(it: Interpreter, node: ast.Break) -> None:
    it.out.append(Jump("break", node))


def do_FunctionDef(it: Interpreter, node: Function) -> None:
    it.scope.names[node.name] = Value("function", node.name, {"node": node, "module": it.module, "scope": it.scope})


def do_ClassDef(it: Interpreter, node: ast.ClassDef) -> None:
    it.scope.names[node.name] = Value("class", node.name, {"node": node, "module": it.module})


def do_If(it: Interpreter, node: ast.If) -> None:
    if dotted(node.test) == "TYPE_CHECKING":
        return
    it.value(node.test)
    test = formula(it, node.test)
    before = dict(it.scope.names)
    then = it.collect(lambda: it.block(node.body))
    after_then, it.scope.names = it.scope.names, dict(before)
    other = it.collect(lambda: it.block(node.orelse))
    it.out.append(If(test, then, other))
    if leaves(then) and not leaves(other):
        return
    if leaves(other) and not leaves(then):
        it.scope.names = after_then
        return
    for name, value in after_then.items():
        it.scope.names[name] = either(it, test, value, it.scope.names.get(name))


def do_For(it: Interpreter, node: ast.For) -> None:
    over = it.value(node.iter)
    if (turns := unrolled(it, node.iter, over)) is not None:
        for item in turns:
            bind(it, node.target, item)
            it.block(node.body)
        return
    loop(it, node, over)


def unrolled(it: Interpreter, node: ast.expr, over: Value) -> list[Value] | None:
    """The turns of a loop over a few optimizers, models and their like, told one by one."""
    if over.kind == "list" and 0 < len(over.data["items"]) <= 4:
        return over.data["items"] if all(v.kind in SEVERAL for v in over.data["items"]) else None
    if over.kind == "zipped":
        sides = [unrolled(it, node, side) for side in over.data["items"]]
        length = min((len(side) for side in sides if side is not None), default=0)
        if length:
            return [
                several([side[i] if side is not None else element(it, node, whole) for side, whole in pairs])
                for i in range(length)
                for pairs in [list(zip(sides, over.data["items"]))]
            ]
    return None


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
    once = over is not None and over.kind in ("params", "groups", "optimizers", "modules", "optimizer", "scheduler")
    once = once or (turn is not None and turn.kind in ("optimizer", "scheduler"))
    it.out.append(Loop(node, it.module.path, body, birth, over, once))
    it.entered = entered
    it.block(node.orelse)


def carried(it: Interpreter, node: ast.AST) -> None:
    """Names that the loop counts up are its index; others that it assigns anew are not what they were before it."""
    for part in ast.walk(node):
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
                    it.scope.names[target.id] = Value("unknown", target.id)


def do_With(it: Interpreter, node: ast.With) -> None:
    outer = it.regions
    for item in node.items:
        value = it.value(item.context_expr)
        found = effects.regions(it, value, item.context_expr)
        it.regions = [*it.regions, *found]
        if item.optional_vars is not None:
            bind(it, item.optional_vars, value.data.get("as", value))
    it.block(node.body)
    it.regions = outer


def do_Try(it: Interpreter, node: ast.Try) -> None:
    it.block([*node.body, *node.orelse, *node.finalbody])


def do_Match(it: Interpreter, node: ast.Match) -> None:
    it.value(node.subject)
    for i, case in enumerate(node.cases):
        test = ("atom", Atom(f"case {i} of {node.lineno}", next(births)))
        it.out.append(If(test, it.collect(lambda case=case: it.block(case.body)), []))


def do_Assign(it: Interpreter, node: ast.Assign) -> None:
    for target in node.targets:
        if effects.assign_gradient(it, node, target, node.value, None):
            return
    if (again := onto_itself(node)) is not None:
        do_AugAssign(it, again)
        return
    value = it.value(node.value)
    if len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        it.origins[(id(it.scope), node.targets[0].id)] = node.value
    if value.kind == "unknown" and value.data.get("made") and isinstance(node.targets[0], (ast.Name, ast.Attribute)):
        name_result(it, node.targets[0], value)
    if (
        value.kind in ("unknown", "number")
        and isinstance(node.targets[0], (ast.Name, ast.Attribute))
        and not value.name
    ):
        value.name = dotted(node.targets[0])
    for target in node.targets:
        bind(it, target, value)


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
    one = value.kind == "number" and value.data.get("value") == 1
    if isinstance(node.op, ast.Add) and old.kind in ("index", "number", "unknown") and one:
        bind(it, node.target, Value("index", old.name, {"offset": old.data.get("offset", 0) + 1}))
        return
    made = combined(it, node.op, old, value, node.value)
    if isinstance(node.op, ast.Add) and old.kind in ("number", "unknown") and made.kind == "tensor":
        made.data["roots"] = made.data.get("roots", frozenset()) | effects.kept(it, node, node.target, old, value)
    bind(it, node.target, made)


def do_Delete(it: Interpreter, node: ast.Delete) -> None:
    pass


def leaves(items: list) -> bool:
    return any(isinstance(item, Jump) for item in items)


WORK: dict[str, Callable] = {
    "Expr": do_Expr,
    "Return": do_Return,
    "Raise": do_Raise,
    "Continue": do_Continue,
    "Break": do_Break,
    "FunctionDef": do_FunctionDef,
    "ClassDef": do_ClassDef,
    "If": do_If,
    "For": do_For,
    "While": do_While,
    "With": do_With,
    "Try": do_Try,
    "Match": do_Match,
    "Assign": do_Assign,
    "AnnAssign": do_AnnAssign,
    "AugAssign": do_AugAssign,
    "Delete": do_Delete,
    "AsyncFunctionDef": do_FunctionDef,
    "AsyncFor": do_For,
    "AsyncWith": do_With,
    "TryStar": do_Try,
}
