"""Statements: what each binds, and the branches and regions that it makes."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from typing import Any

from gradlab.audit.interpreter.assignments import follow_annotated, follow_assign, follow_augmented
from gradlab.audit.interpreter.binding import bind, merge_attributes, revert_attributes
from gradlab.audit.interpreter.canonical_text import youngest
from gradlab.audit.interpreter.context_managers import enter_object, leave
from gradlab.audit.interpreter.loops import follow_for, follow_while
from gradlab.audit.knowledge.context_regions import regions, settled
from gradlab.audit.source.project import Function
from gradlab.audit.source.syntax import dotted
from gradlab.audit.trace.choices import either
from gradlab.audit.trace.conditions import FALSE, TRUE, Atom, Formula, joined, negation
from gradlab.audit.trace.engine import Engine
from gradlab.audit.trace.event_tree import If, Jump, Node, events
from gradlab.audit.trace.values import Value

FAILING = {"raises", "assertRaises", "assertRaisesRegex"}
"""Context managers around code that is expected to fail."""


def follow_expression(engine: Engine, node: ast.Expr) -> None:
    engine.statement_call = node.value
    engine.value(node.value)


def follow_return(engine: Engine, node: ast.Return) -> None:
    value = engine.value(node.value) if node.value else Value("none", "None")
    if node.value is not None:
        engine.remember(value, node.value)
    if engine.returned:
        engine.returned[-1].append(value)
    engine.out.append(Jump("return", node, value))


def follow_jump(engine: Engine, node: ast.Raise | ast.Continue | ast.Break) -> None:
    engine.out.append(Jump(type(node).__name__.lower(), node))


def define_function(engine: Engine, node: Function) -> None:
    scope = engine.scope
    scope.names[node.name] = Value("function", node.name, node=node, module=engine.module, scope=scope)


def define_class(engine: Engine, node: ast.ClassDef) -> None:
    engine.scope.names[node.name] = Value("class", node.name, node=node, module=engine.module)


def declare(engine: Engine, node: ast.Global | ast.Nonlocal) -> None:
    """The names are those of the module, or of a function around this one."""
    scope = engine.scope
    for name in node.names:
        outer = engine.top(engine.module) if isinstance(node, ast.Global) else scope.parent
        while isinstance(node, ast.Nonlocal) and outer is not None and name not in outer.names:
            outer = outer.parent
        if outer is not None and outer is not scope:
            scope.elsewhere[name] = outer


def follow_if(engine: Engine, node: ast.If) -> None:
    if dotted(node.test) == "TYPE_CHECKING":
        return
    if re.fullmatch(r"__name__ == ['\"]__main__['\"]", ast.unparse(node.test)):  # what is audited is run
        return engine.block(node.body)
    engine.value(node.test)
    test = engine.formula(node.test)
    follow_branches(engine, node, test, lambda: engine.block(node.body), lambda: engine.block(node.orelse))


def follow_branches(
    engine: Engine, node: ast.AST, test: Formula, work: Callable[[], None], otherwise: Callable[[], None]
) -> None:
    """Both branches, each from the names and attributes before it; then the names that either may leave behind."""
    outer, mark = engine.regions, len(engine.written)
    scopes = list(dict.fromkeys([engine.scope, *engine.scope.elsewhere.values()]))
    before = [dict(scope.names) for scope in scopes]
    then = branch(engine, work, test)
    after_then = [scope.names for scope in scopes]
    for scope, names in zip(scopes, before):
        scope.names = names
    set_then = revert_attributes(engine, mark)
    entered, engine.regions = engine.regions[len(outer) :], outer
    other = branch(engine, otherwise, negation(test))
    set_other = revert_attributes(engine, mark)
    merge_attributes(engine, test, set_then, set_other, leaves(then), leaves(other))
    for region in entered:  # of an ExitStack
        region.when = joined("and", [test, region.when])
    engine.regions = [*engine.regions, *entered]
    engine.out.append(If(test, then, other, node))
    if leaves(then) and not leaves(other):
        return
    for scope, names in zip(scopes, after_then):
        if leaves(other) and not leaves(then):
            scope.names = names
            continue
        for name, value in names.items():
            scope.names[name] = either(test, value, scope.names.get(name))


def branch(engine: Engine, work: Callable[[], None], test: Formula) -> list[Node]:
    """What happens in a branch; what it returns counts if its condition may hold."""
    before = len(engine.returned[-1]) if engine.returned else 0
    engine.conditions.append(test)
    items = engine.collect(work)
    engine.conditions.pop()
    if engine.returned and test == FALSE:
        del engine.returned[-1][before:]
    return items


def left_for_sure(items: Sequence[Node]) -> bool:
    """Whether a `return` is reached under every condition that may hold."""
    for item in items:
        if isinstance(item, If):
            sides = [side for never, side in ((FALSE, item.then), (TRUE, item.other)) if item.test != never]
            if all(map(left_for_sure, sides)):
                return True
        elif isinstance(item, Jump) and item.kind == "return":
            return True
    return False


def leaves(items: Sequence[Node]) -> bool:
    return any(isinstance(item, Jump) for item in items)


def follow_with(engine: Engine, node: ast.With) -> None:
    outer = engine.regions
    opened: list[tuple[Value, ast.expr]] = []
    for item in node.items:
        value = engine.value(item.context_expr)
        found = settled(regions(value, item.context_expr), node.body)
        engine.regions = [*engine.regions, *found]
        opened.append((value, item.context_expr))
        bound = value.entered or value
        if value.kind == "instance" and (entered := enter_object(engine, value, item.context_expr)) is not None:
            bound = entered
        if value.kind == "stack":
            value.region = found[0]
        if item.optional_vars is not None:
            bind(engine, item.optional_vars, bound)
    body = engine.collect(lambda: engine.block(node.body))
    names = (dotted(getattr(item.context_expr, "func", item)).split(".")[-1] for item in node.items)
    if not any(name in FAILING for name in names):
        engine.out += body
    engine.regions = outer
    for value, at in reversed(opened):
        leave(engine, value, at)


def follow_try(engine: Engine, node: ast.Try) -> None:
    """A handler with a backward pass of its own is another way through; what others do is no part of the loop."""
    tried = engine.collect(lambda: engine.block([*node.body, *node.orelse]))
    for handler in node.handlers:
        before, mark, body = dict(engine.scope.names), len(engine.written), handler.body
        caught = engine.collect(lambda body=body: engine.block(body))  # type: ignore[misc]
        engine.scope.names = before
        revert_attributes(engine, mark)
        if any(event.kind == "backward" for event in events(caught)):
            tried = [If(("atom", Atom(f"raised at {handler.lineno}", 0, "raised")), caught, tried)]
    engine.out += tried
    engine.block(node.finalbody)


def follow_match(engine: Engine, node: ast.Match) -> None:
    engine.value(node.subject)
    follow_cases(engine, node, node.cases)


def follow_cases(engine: Engine, node: ast.Match, cases: list[ast.match_case]) -> None:
    if not cases:
        return
    text = ast.unparse(cases[0].pattern)
    atom = Atom(f"{engine.canonical(node.subject)} matches {text}", youngest(engine, node.subject))
    test = TRUE if text == "_" and cases[0].guard is None else ("atom", atom)

    def first() -> None:
        for part in ast.walk(cases[0].pattern):
            for name in (getattr(part, "name", None), getattr(part, "rest", None)):
                if isinstance(name, str):
                    engine.scope.names[name] = Value("unknown", name)
        engine.value(cases[0].guard)
        engine.block(cases[0].body)

    follow_branches(engine, node.subject, test, first, lambda: follow_cases(engine, node, cases[1:]))


STATEMENTS: dict[type[ast.stmt], Callable[[Engine, Any], None]] = {
    ast.Expr: follow_expression,
    ast.Return: follow_return,
    ast.Raise: follow_jump,
    ast.Continue: follow_jump,
    ast.Break: follow_jump,
    ast.FunctionDef: define_function,
    ast.AsyncFunctionDef: define_function,
    ast.ClassDef: define_class,
    ast.If: follow_if,
    ast.For: follow_for,
    ast.AsyncFor: follow_for,
    ast.While: follow_while,
    ast.With: follow_with,
    ast.AsyncWith: follow_with,
    ast.Try: follow_try,
    ast.TryStar: follow_try,
    ast.Match: follow_match,
    ast.Global: declare,
    ast.Nonlocal: declare,
    ast.Assign: follow_assign,
    ast.AnnAssign: follow_annotated,
    ast.AugAssign: follow_augmented,
}
