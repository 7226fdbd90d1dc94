"""Objects of the project's classes: how they are made, their members, and the methods of their bases."""

from __future__ import annotations

import ast

from gradlab.audit.interpreter.classes import fields, forget_assigned, new_object
from gradlab.audit.knowledge.call_site import CallSite
from gradlab.audit.knowledge.methods import SAME_MODEL
from gradlab.audit.knowledge.opaque_calls import HOLDING, may_hold_optimizer
from gradlab.audit.source.syntax import dotted
from gradlab.audit.trace.engine import Engine
from gradlab.audit.trace.iterables import every
from gradlab.audit.trace.values import Frame, Value


def instance(engine: Engine, callee: Value, args: list[Value], keywords: dict[str, Value], at: ast.AST) -> Value:
    """An object of a class of the project; `at`: the call."""
    value = new_object(engine.project, callee)
    if value.kind in ("optimizer", "scheduler"):
        params = [v for a in args for v in every(a) if v.kind == "params"]
        value.of = params[0].root() if params else None
        return value
    value.making = Frame(at, engine.module, [*args, *keywords.values()], False)
    value.built = isinstance(at, ast.Call) and value.kind in ("model", "instance")
    for one in (v for a in [*args, *keywords.values()] for v in every(a) if v.kind in ("model", "ddp", "instance")):
        one.root().shared = value.shared = True
    value.received_training = any(v.kind in HOLDING for a in [*args, *keywords.values()] for v in every(a))
    if (found := value.method("__init__")) is not None:
        engine.enter(*found, args, keywords, value, at)
    elif value.kind == "instance":
        names = fields(value)
        placed = {} if value.framework else dict(zip(names, args))  # a base that is not seen has fields before them
        value.attributes |= {**placed, **{k: v for k, v in keywords.items() if k in names}}
        if (found := value.method("__post_init__")) is not None:
            engine.enter(*found, [], {}, value, at)
    forget_assigned(value)
    return value


def member(engine: Engine, value: Value, name: str) -> Value | None:
    """A method, property or class attribute of an object of a class of the project."""
    found = value.method(name)
    if found is None:
        return None
    node, module = found
    if any(dotted(d).split(".")[-1] in ("property", "cached_property") for d in node.decorator_list):
        result = engine.enter(node, module, [], {}, value, node)
        return result if result is not None else Value()
    return Value("method", name, node=node, module=module, owner=value)


def base_method(call: CallSite, parent: Value) -> Value:
    """`super().name(...)`."""
    engine, name, value = call.engine, call.name, parent.owner
    if value is None:
        return Value()
    found = value.method(name, above=engine.stack[-1] if engine.stack else None)
    result = engine.enter(*found, call.args, call.keywords, value, call.node) if found is not None else None
    if name == "__init__":
        return Value()
    if found is None:
        if name in SAME_MODEL and value.kind in ("model", "ddp"):
            return value
        if value.framework and may_hold_optimizer(engine, value):
            call.emit("opaque", value, name=name, receives=frozenset({"self"}))
        return Value(opaque=True, made=True)
    return result if result is not None else Value()
