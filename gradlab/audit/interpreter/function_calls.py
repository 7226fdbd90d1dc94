"""Calls that are followed into the project's own functions."""

from __future__ import annotations

import ast
from dataclasses import replace
from functools import lru_cache

from gradlab.audit.interpreter.context_managers import managed
from gradlab.audit.interpreter.parameters import parameters
from gradlab.audit.knowledge.call_site import CallSite
from gradlab.audit.knowledge.context_regions import regions
from gradlab.audit.knowledge.known_names import kind_made
from gradlab.audit.knowledge.opaque_calls import opaque_call
from gradlab.audit.source import syntax
from gradlab.audit.source.project import Function, Module
from gradlab.audit.source.syntax import dotted
from gradlab.audit.trace.choices import choice, number_of_processes, returned
from gradlab.audit.trace.engine import Engine
from gradlab.audit.trace.event_tree import Block, Node, events, walk
from gradlab.audit.trace.iterables import several
from gradlab.audit.trace.values import Event, Frame, Scope, Value

CONTEXTS = {"autocast", "no_grad", "inference_mode", "enable_grad"}
"""Context managers that decorate functions, too."""
DEPTH, CALLS = 7, 400
"""How deep calls are entered, and how many from one entry point."""
MANY, FEW = 6000, 40
"""After this many calls in a file (hundreds of tests, for example) only a few from each entry point that is left."""
EVALUATED = 60_000
"""After this many expressions in a file no call is entered any more: each function is followed by itself.

Functions that act on gradients themselves are entered for as many more.
"""
ACTING = {"backward", "manual_backward", "step", "zero_grad", "unscale_", "clip_grad_norm_", "clip_grad_value_"}
"""Methods and functions that act on gradients."""


def follow_call(call: CallSite, callee: Value) -> Value:
    """The result of a function or method of the project; what it does has happened then."""
    engine, function, owner = call.engine, callee.node, callee.owner
    named = replace(call, name=function.name)
    if abstract(function):
        return opaque_call(named, Value(framework=True) if owner is not None else None)
    made: list[Value | None] = []
    items = engine.collect(
        lambda: made.append(
            engine.enter(function, callee.module, call.args, call.keywords, owner, call.node, callee.scope)
        )
    )
    result = made[0]
    if result is None:
        return opaque_call(named, owner)
    if {"contextmanager", "asynccontextmanager"} & {decorator_name(d) for d in function.decorator_list}:
        return managed(engine, items, function.name)
    engine.visited.add(call.node)
    engine.out += items
    if function.name == "zero_grad" and owner is not None and all(event.kind != "zero" for event in events(items)):
        call.emit("zero", None, owner=owner)  # in a way that is not known
    return answer(function, result) if result.kind in ("number", "bool", "unknown") else result


def decorator_name(node: ast.expr) -> str:
    return dotted(node.func if isinstance(node, ast.Call) else node).split(".")[-1]


def answer(node: Function, value: Value) -> Value:
    """A function that looks for NaN or Inf and returns True or False: which one is not known."""
    checks = any(getattr(part, "attr", "") in ("isfinite", "isnan", "isinf") for part in ast.walk(node))
    if not checks or not isinstance(value.value, bool):
        return value
    return Value(made=True, checks_finite=True)


def enter(
    engine: Engine,
    function: Function,
    module: Module,
    args: list[Value],
    keywords: dict[str, Value],
    owner: Value | None,
    at: ast.AST,
    closure: Scope,
) -> Value | None:
    """Follow a function's body; None where it cannot be entered."""
    limit = CALLS if engine.total < MANY else FEW
    if owner is None and module is engine.audited:
        limit *= 2  # not for the parts of many networks, of which one is chosen
    if function in engine.stack or len(engine.stack) >= DEPTH or engine.calls >= limit:
        return None
    if at is not function and abstract(function):
        return None
    allowed = EVALUATED * (2 if acts_on_gradients(function) else 1)
    if at is not function and engine.evaluated > allowed:
        engine.exhausted = engine.exhausted or at
        return None
    engine.calls += 1
    engine.total += 1
    engine.visited.add(function)
    static = any(dotted(d) == "staticmethod" for d in function.decorator_list)
    if owner is not None and not static and (function.args.posonlyargs or function.args.args):
        args = [owner, *args]
    scope = Scope(closure, function, module)
    scope.names |= parameters(engine, function, args, keywords, called=at is not function)
    outer, engine.scope, outer_regions = engine.scope, scope, engine.regions
    for decorator in function.decorator_list:
        if decorator_name(decorator) in CONTEXTS:
            engine.regions = [*engine.regions, *regions(engine.value(decorator), decorator)]
    engine.stack.append(function)
    engine.returned.append([])
    engine.selves.append(args[0] if owner is not None and args else engine.selves[-1])
    own = owner is None or owner is engine.selves[-2]
    engine.frames.append(Frame(at, outer.module, [*args, *keywords.values()], own))
    body = engine.collect(lambda: engine.block(function.body))
    engine.frames.pop()
    engine.selves.pop()
    engine.stack.pop()
    engine.closures += [v for v in scope.names.values() if v.kind == "function" and v.scope is scope]
    engine.scope, engine.regions = outer, outer_regions
    if any(isinstance(item, Event) for item in walk(body)):
        engine.out.append(Block(function, module.path, body, function.name))
    engine.answers = engine.returned.pop()
    return under_conditions(engine.answers, body) or merged(engine.answers)


@lru_cache(maxsize=2000)
def acts_on_gradients(function: Function) -> bool:
    """Whether a function calls anything by itself that acts on gradients."""
    return any(isinstance(part, ast.Attribute) and part.attr in ACTING for part in syntax.walk(function))


def abstract(node: Function) -> bool:
    """A method that subclasses define: its own body does not show what happens."""
    if any(dotted(d).split(".")[-1] == "abstractmethod" for d in node.decorator_list):
        return True
    body = [n for n in node.body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]
    return all(isinstance(n, ast.Raise) and "NotImplemented" in ast.unparse(n) for n in body) and (
        bool(body) or any(isinstance(n, ast.Expr) and ast.unparse(n) == "..." for n in node.body)
    )


def under_conditions(values: list[Value], body: list[Node]) -> Value | None:
    """A context or another one, a network or what wraps it, each under its condition.

    Something unknown where the conditions of contexts are not known.
    """
    made = [kind_made(v.name) if v.kind == "external" else v.kind for v in values]
    kinds = {"no_sync" if v.word == "no_sync" else kind for v, kind in zip(values, made)}
    contexts = len(kinds) > 1 and bool(kinds & {"no_sync", "autocast"})
    if contexts or kinds == {"ddp", "model"}:
        found = returned(body) if all(v.kind != "external" for v in values) else None
        if found is not None and len(found) == len(values):
            return choice(found)
    return Value(made=True) if contexts else None


def merged(values: list[Value]) -> Value:
    """What a function returns, of all its `return`; of tuples of one length each item by itself."""
    if (processes := number_of_processes(values)) is not None:
        return processes
    telling = [v for v in values if v.kind not in ("none", "unknown")] or [v for v in values if v.kind != "none"]
    if any(v.kind == "none" for v in values) and all(v.kind == "number" for v in telling) and telling:
        return Value(made=True, given=True)  # the number or None
    for one in telling:  # what stands for one or several: itself, or a list of it
        if one.kind in ("optimizer", "list") and all(v is one or v.items == [one] for v in telling):
            return one
    rows = [v.items for v in telling if v.kind == "list" and not v.choice]
    if len(rows) > 1 and len(rows) == len(telling) and len({len(row) for row in rows}) == 1 and rows[0]:
        return several([merged(list(column)) for column in zip(*rows)])
    schedules = tuple(dict.fromkeys(v for v in telling if v.kind == "scheduler"))
    if len(schedules) > 1:
        return schedules[-1].derived("scheduler", schedules[-1].name, among=schedules)
    found = (telling or values or [Value("none", "None")])[-1]
    if found.kind == "tensor" and any(one is not found for one in telling):
        word = found.range if all(one.range == found.range for one in telling) else ""
        return found.derived("tensor", found.name, range=word, number=found.number, attributes=found.attributes)
    return found
