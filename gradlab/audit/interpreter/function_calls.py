"""Calls that are followed into the project's own functions."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gradlab.audit.interpreter.parameters import parameters
from gradlab.audit.knowledge import losses as effects
from gradlab.audit.knowledge.opaque_calls import opaque
from gradlab.audit.source.project import Function, Module
from gradlab.audit.source.syntax import dotted
from gradlab.audit.trace.events import Block, Event, events
from gradlab.audit.trace.events import walk as tree_walk
from gradlab.audit.trace.scope import Scope
from gradlab.audit.trace.values import Value, several

if TYPE_CHECKING:
    from gradlab.audit.interpreter.interpreter import Interpreter


CONTEXTS = {"autocast", "no_grad", "inference_mode"}
"""Contexts that decorate functions, too."""
DEPTH, CALLS = 7, 400
"""How deep calls are entered, and how many from one beginning."""
MANY, FEW = 6000, 40
"""After so many in a file, of hundreds of tests say, so few from each beginning that is left."""


def follow(it: Interpreter, node: ast.Call, callee: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    target = callee.data["node"]
    if abstract(target):
        unknown = Value("unknown", "", {"framework": True})
        return opaque(it, node, target.name, callee.data.get("self") and unknown, args, keywords)
    args, keywords = [*callee.data.get("args", []), *args], {**callee.data.get("keywords", {}), **keywords}
    names = {dotted(d.func if isinstance(d, ast.Call) else d).split(".")[-1] for d in target.decorator_list}
    closure = callee.data.get("scope") or it.world(callee.data["module"])
    made: list[Value | None] = []
    owner = callee.data.get("self")
    items = it.collect(
        lambda: made.append(enter(it, target, callee.data["module"], args, keywords, owner, node, closure))
    )
    if made[0] is None:
        return opaque(it, node, target.name, owner, args, keywords)
    if names & {"contextmanager", "asynccontextmanager"}:
        from gradlab.audit.interpreter.context_managers import managed

        return managed(it, items, target.name)
    it.visited.add(node)
    it.out += items
    if target.name == "zero_grad" and owner is not None and all(event.kind != "zero" for event in events(items)):
        it.emit("zero", node, None, whose="unknown", given=owner)  # in a way that is not known
    if made[0].kind in ("number", "bool", "unknown"):
        return answer(target, made[0])
    return made[0]


def answer(node: Function, value: Value) -> Value:
    """Of a function that returns yes or no after a look at what is finite: which one is not known."""
    checks = any(getattr(part, "attr", "") in ("isfinite", "isnan", "isinf") for part in ast.walk(node))
    if not checks or not isinstance(value.data.get("value"), bool):
        return value
    return Value("unknown", "", {"made": True, "finite": True})


def enter(
    it: Interpreter,
    node: Function,
    module: Module,
    args: list[Value],
    keywords: dict[str, Value],
    owner: Value | None,
    at: ast.AST,
    closure: Scope,
) -> Value | None:
    """Follow a function's body; None where it cannot be entered."""
    if (
        node in it.stack
        or len(it.stack) >= DEPTH
        or it.calls >= (CALLS if it.total < MANY else FEW)
        or (at is not node and abstract(node))
    ):
        return None
    it.calls += 1
    it.total += 1
    it.visited.add(node)
    static = any(dotted(d) == "staticmethod" for d in node.decorator_list)
    if owner is not None and not static and (node.args.posonlyargs or node.args.args):
        args = [owner, *args]
    scope = Scope(closure, node, module)
    scope.names |= parameters(it, node, args, keywords, called=at is not node)
    outer, it.scope, regions = it.scope, scope, it.regions
    for decorator in node.decorator_list:
        if dotted(decorator.func if isinstance(decorator, ast.Call) else decorator).split(".")[-1] in CONTEXTS:
            it.regions = [*it.regions, *effects.regions(it, it.value(decorator), decorator)]
    it.stack.append(node)
    it.returned.append([])
    it.selves.append(args[0] if owner is not None and args else it.selves[-1])
    own = owner is None or owner is it.selves[-2]
    it.frames.append((at, outer.module, [*args, *keywords.values()], own))
    body = it.collect(lambda: it.block(node.body))
    it.frames.pop()
    it.selves.pop()
    it.stack.pop()
    it.inner += [v for v in scope.names.values() if v.kind == "function" and v.data.get("scope") is scope]
    it.scope, it.regions = outer, regions
    if any(isinstance(item, Event) for item in tree_walk(body)):
        it.out.append(Block(node, module.path, body, node.name))
    return together(it.returned.pop())


def abstract(node: Function) -> bool:
    """A method that subclasses define: its own body says nothing of what happens."""
    if any(dotted(d).split(".")[-1] == "abstractmethod" for d in node.decorator_list):
        return True
    body = [n for n in node.body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]
    return all(isinstance(n, ast.Raise) and "NotImplemented" in ast.unparse(n) for n in body) and (
        bool(body) or any(isinstance(n, ast.Expr) and ast.unparse(n) == "..." for n in node.body)
    )


def together(values: list[Value]) -> Value:
    """What a function gives back, of all its returns; of several values at once, each by itself."""
    telling = [v for v in values if v.kind not in ("none", "unknown")] or [v for v in values if v.kind != "none"]
    rows = [v.data["items"] for v in telling if v.kind == "list" and "choice" not in v.data]
    if len(rows) > 1 and len(rows) == len(telling) and len({len(row) for row in rows}) == 1 and rows[0]:
        return several([together(list(column)) for column in zip(*rows)])
    schedules = list(dict.fromkeys(v for v in telling if v.kind == "scheduler"))
    if len(schedules) > 1:
        last = schedules[-1]
        return Value("scheduler", last.name, {**last.data, "among": schedules})
    return (telling or values or [Value("none", "None")])[-1]
