"""Objects of the project's classes made, their members, and what their parents do."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gradlab.audit.interpreter.classes import method_of, object_of, settle
from gradlab.audit.interpreter.function_calls import enter
from gradlab.audit.knowledge.opaque_calls import HOLDING
from gradlab.audit.source.syntax import dotted
from gradlab.audit.trace.values import Value, every

if TYPE_CHECKING:
    from gradlab.audit.interpreter.interpreter import Interpreter


def member(it: Interpreter, value: Value, name: str) -> Value | None:
    """A method, property or class attribute of an instance of a class of the project."""
    found = method_of(value, name)
    if found is None:
        return None
    node, module_ = found
    made = Value("method", name, {"node": node, "module": module_, "self": value})
    if any(dotted(d).split(".")[-1] in ("property", "cached_property") for d in node.decorator_list):
        result = enter(it, node, module_, [], {}, value, node, it.world(module_))
        return result if result is not None else Value()
    return made


def parent(
    it: Interpreter, node: ast.Call, owner: Value, name: str, args: list[Value], keywords: dict[str, Value]
) -> Value:
    value = owner.data.get("self")
    if value is None or name == "__init__":
        if value is not None and (found := method_of(value, name, above=it.stack[-1] if it.stack else None)):
            enter(it, found[0], found[1], args, keywords, value, node, it.world(found[1]))
        return Value()
    found = method_of(value, name, above=it.stack[-1] if it.stack else None)
    if found is None:
        if value.data.get("framework"):
            it.emit("opaque", node, value, name=name, receives={"self"})
        return Value("unknown", "", {"opaque": True, "made": True})
    result = enter(it, found[0], found[1], args, keywords, value, node, it.world(found[1]))
    return result if result is not None else Value()


def instance(it: Interpreter, callee: Value, args: list[Value], keywords: dict[str, Value], at: ast.AST) -> Value:
    value = object_of(it, callee)
    if value.kind in ("optimizer", "scheduler"):
        params = [v for a in args for v in every(a) if v.kind == "params"]
        value.data["of"] = params[0].root() if params else None
        return value
    value.data["handed"] = any(v.kind in HOLDING for a in [*args, *keywords.values()] for v in every(a))
    found = method_of(value, "__init__")
    if found is not None:
        enter(it, found[0], found[1], args, keywords, value, at, it.world(found[1]))
    settle(value)
    return value
