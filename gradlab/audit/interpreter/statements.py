"""Statements: what each binds, and the loops, branches and regions that it makes."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from gradlab.audit.interpreter.assignments import do_AnnAssign, do_Assign, do_AugAssign
from gradlab.audit.interpreter.binding import bind, held, taken_back
from gradlab.audit.interpreter.branch_conditions import formula
from gradlab.audit.interpreter.canonical_text import canonical, youngest
from gradlab.audit.interpreter.choices import either
from gradlab.audit.interpreter.context_managers import begun, ended
from gradlab.audit.interpreter.loops import do_For, do_While
from gradlab.audit.knowledge import losses as effects
from gradlab.audit.source.project import Function
from gradlab.audit.source.syntax import dotted
from gradlab.audit.trace.conditions import TRUE, Atom, Formula, joined
from gradlab.audit.trace.events import If, Jump, events
from gradlab.audit.trace.values import Value

if TYPE_CHECKING:
    from gradlab.audit.interpreter.interpreter import Interpreter


FAILING = {"raises", "assertRaises", "assertRaisesRegex"}


def do_Expr(it: Interpreter, node: ast.Expr) -> None:
    it.alone = node.value
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
    branch(it, node, formula(it, node.test), lambda: it.block(node.body), lambda: it.block(node.orelse))


def branch(
    it: Interpreter, node: ast.AST, test: Formula, work: Callable[[], None], otherwise: Callable[[], None]
) -> None:
    before, outer, mark = dict(it.scope.names), it.regions, len(it.written)
    it.branches += 1
    then = it.collect(work)
    after_then, it.scope.names = it.scope.names, dict(before)
    held_then = taken_back(it, mark)
    entered, it.regions = it.regions[len(outer) :], outer
    other = it.collect(otherwise)
    held_other = taken_back(it, mark)
    it.branches -= 1
    held(it, test, held_then, held_other, leaves(then), leaves(other))
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
    body = it.collect(lambda: it.block(node.body))
    if not any(dotted(getattr(item.context_expr, "func", item)).split(".")[-1] in FAILING for item in node.items):
        it.out += body  # of what is meant to fail nothing is said
    it.regions = outer
    for value, at in reversed(opened):
        ended(it, value, at)


def do_Try(it: Interpreter, node: ast.Try) -> None:
    """A handler with a backward pass of its own is another way through; what others do is no part of the loop."""
    tried = it.collect(lambda: it.block([*node.body, *node.orelse]))
    for handler in node.handlers:
        before, mark = dict(it.scope.names), len(it.written)
        caught = it.collect(lambda handler=handler: it.block(handler.body))
        it.scope.names = before
        taken_back(it, mark)
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
