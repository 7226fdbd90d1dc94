"""Statements: what each binds, and the loops, branches and regions that it makes."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from gradlab.audit import effects
from gradlab.audit.binding import bind, element, name_result
from gradlab.audit.choices import either
from gradlab.audit.conditions import TRUE, Atom, Formula, joined
from gradlab.audit.contexts import begun, ended
from gradlab.audit.effects import combined
from gradlab.audit.entering import refine
from gradlab.audit.formulas import canonical, formula, youngest
from gradlab.audit.known import dotted
from gradlab.audit.project import Function
from gradlab.audit.scope import usage
from gradlab.audit.tree import If, Jump, Loop, events
from gradlab.audit.values import CALLED, Value, births, number, several
from gradlab.audit.walking import walk

if TYPE_CHECKING:
    from gradlab.audit.interpreter import Interpreter


WRITTEN_OUT = {"optimizer", "scheduler", "model", "ddp", "scaler", "list", *CALLED}
ONCE = {"params", "groups", "optimizers", "modules", "optimizer", "scheduler"}
"""What a loop is over that is no iteration of the training."""


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
    branch(it, node.test, formula(it, node.test), lambda: it.block(node.body), lambda: it.block(node.orelse))


def branch(
    it: Interpreter, node: ast.AST, test: Formula, work: Callable[[], None], otherwise: Callable[[], None]
) -> None:
    before, outer = dict(it.scope.names), it.regions
    it.branches += 1
    then = it.collect(work)
    after_then, it.scope.names = it.scope.names, dict(before)
    entered, it.regions = it.regions[len(outer) :], outer
    other = it.collect(otherwise)
    it.branches -= 1
    for region in entered:  # of an ExitStack
        region.when = joined("and", [test, region.when])
    it.regions = [*it.regions, *entered]
    it.out.append(If(test, then, other, node))
    if leaves(then) and not leaves(other):
        return
    if leaves(other) and not leaves(then):
        it.scope.names = after_then
        return
    for name, value in after_then.items():
        it.scope.names[name] = either(it, test, value, it.scope.names.get(name))


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
                    it.scope.names[target.id] = Value("unknown", target.id)


def do_With(it: Interpreter, node: ast.With) -> None:
    outer = it.regions
    opened: list[tuple[Value, ast.expr]] = []
    for item in node.items:
        value = it.value(item.context_expr)
        found = effects.regions(it, value, item.context_expr)
        it.regions = [*it.regions, *found]
        opened.append((value, item.context_expr))
        handed = value.data.get("as", value)
        if value.kind == "instance" and (entered := begun(it, value, item.context_expr)) is not None:
            handed = entered
        if value.kind == "stack":
            value.data["region"] = found[0]
        if item.optional_vars is not None:
            bind(it, item.optional_vars, handed)
    it.block(node.body)
    it.regions = outer
    for value, at in reversed(opened):
        ended(it, value, at)


def do_Try(it: Interpreter, node: ast.Try) -> None:
    """A handler with a backward pass of its own is another way through; what others do is no part of the loop."""
    tried = it.collect(lambda: it.block([*node.body, *node.orelse]))
    for handler in node.handlers:
        before = dict(it.scope.names)
        caught = it.collect(lambda handler=handler: it.block(handler.body))
        it.scope.names = before
        if any(event.kind == "backward" for event in events(caught)):
            tried = [If(("atom", Atom(f"raised at {handler.lineno}", 0, "raised")), caught, tried)]
    it.out += tried
    it.block(node.finalbody)


def do_Match(it: Interpreter, node: ast.Match) -> None:
    it.value(node.subject)
    match_cases(it, node, node.cases)


def match_cases(it: Interpreter, node: ast.Match, cases: list[ast.match_case]) -> None:
    if not cases:
        return
    text, sure = ast.unparse(cases[0].pattern), cases[0].guard is None and ast.unparse(cases[0].pattern) == "_"
    atom = Atom(f"{canonical(it, node.subject)} matches {text}", youngest(it, node.subject))

    def first() -> None:
        for part in ast.walk(cases[0].pattern):
            for name in (getattr(part, "name", None), getattr(part, "rest", None)):
                if isinstance(name, str):
                    it.scope.names[name] = Value("unknown", name)
        it.value(cases[0].guard)
        it.block(cases[0].body)

    branch(it, node.subject, TRUE if sure else ("atom", atom), first, lambda: match_cases(it, node, cases[1:]))


def do_Assign(it: Interpreter, node: ast.Assign) -> None:
    for target in node.targets:
        if effects.assign_gradient(it, node, target, node.value, None):
            return
    if (again := onto_itself(node)) is not None:
        do_AugAssign(it, again)
        return
    old = it.value(node.targets[0]) if averages(node) else None
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
