"""Expressions: what they stand for, and the events of the calls in them."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from gradlab.audit.interpreter.calls import call
from gradlab.audit.interpreter.containers import comprehension, dictionary_comprehension, mapping, sequence, subscript
from gradlab.audit.knowledge.opaque_calls import count_of
from gradlab.audit.knowledge.tensor_arithmetic import combined, quotient
from gradlab.audit.trace.choices import either
from gradlab.audit.trace.engine import Engine
from gradlab.audit.trace.event_tree import If
from gradlab.audit.trace.iterables import number, parameters_of, several
from gradlab.audit.trace.provenance import is_traced, provenance
from gradlab.audit.trace.values import Value

PLAIN = ("unknown", "bool", "number", "none", "tensor")
"""Kinds of what may be the left side of `x or default`."""


def constant(engine: Engine, node: ast.Constant) -> Value:
    return Value("none", "None", birth=0) if node.value is None else Value("number", value=node.value, birth=0)


def name(engine: Engine, node: ast.Name) -> Value:
    return engine.named(node.id)


def attribute(engine: Engine, node: ast.Attribute) -> Value:
    return engine.attribute(engine.value(node.value), node.attr, node)


def function(engine: Engine, node: ast.Lambda) -> Value:
    return Value("lambda", node=node, scope=engine.scope)


def named_expression(engine: Engine, node: ast.NamedExpr) -> Value:
    value = engine.value(node.value)
    engine.scope.names[node.target.id] = value
    return value


def inner(engine: Engine, node: ast.Await | ast.Starred) -> Value:
    return engine.value(node.value)


def generator_yield(engine: Engine, node: ast.Yield | ast.YieldFrom) -> Value:
    engine.emit("yield", node, engine.value(node.value) if node.value is not None else None)
    return Value()


def conditional(engine: Engine, node: ast.IfExp) -> Value:
    engine.value(node.test)
    test = engine.formula(node.test)
    values: list[Value] = []
    then = engine.collect(lambda: values.append(engine.value(node.body)))
    other = engine.collect(lambda: values.append(engine.value(node.orelse)))
    if then or other:
        engine.out.append(If(test, then, other))
    return either(test, *values)


def boolean(engine: Engine, node: ast.BoolOp) -> Value:
    values = [engine.value(part) for part in node.values]
    known = next((v for v in values if v.kind not in PLAIN), None)
    if isinstance(node.op, ast.Or) and known is not None:
        return known
    if isinstance(node.op, ast.And) and all(v.kind in ("autocast", "context", "null") for v in values[:-1]):
        return values[-1]  # `with autocast() and no_sync():` enters the last one
    return Value("bool", formula=engine.formula(node))


def comparison(engine: Engine, node: ast.Compare) -> Value:
    for part in (node.left, *node.comparators):
        engine.value(part)
    return Value("bool", formula=engine.formula(node))


def unary(engine: Engine, node: ast.UnaryOp) -> Value:
    value = engine.value(node.operand)
    if isinstance(node.op, ast.Not):
        return Value("bool", formula=engine.formula(node))
    if value.kind == "number" and isinstance(node.op, ast.USub) and isinstance(value.value, (int, float)):
        return number(-value.value)
    return value


def binary(engine: Engine, node: ast.BinOp) -> Value:
    left, right = engine.value(node.left), engine.value(node.right)
    if isinstance(node.op, ast.Mod) and left.kind == "index":
        return Value("bool", formula=engine.formula(node))
    if isinstance(node.op, (ast.Add, ast.Sub)) and left.kind == "index" and right.kind == "number":
        sign = 1 if isinstance(node.op, ast.Add) else -1
        if isinstance(right.value, int):
            return left.derived("index", left.name, offset=left.offset + sign * right.value)
    if left.kind == "list" and right.kind == "list" and isinstance(node.op, ast.Add):
        return several([*left.items, *right.items])
    if left.kind == "params" or right.kind == "params":
        return parameters_of([left, right])
    if isinstance(node.op, ast.Add) and left.counted is not None and right.kind == "number":
        return count_of(left, "clamp")  # `mask.sum() + 1e-8`
    if left.kind != "tensor" and right.kind != "tensor":  # the same of the same is the same
        known = is_traced(left) and is_traced(right)
        numbers = left.numbers if isinstance(node.op, ast.Sub) else (*left.numbers, *right.numbers)
        facts = {"numbers": numbers, **provenance(engine, node, [left, right])}
        if known and "detached" in (left.kind, right.kind):
            return Value("detached", **facts)
        facts["factors"] = quotient(engine, node.op, left, right, node.right)
        return engine.results.setdefault(engine.canonical(node), Value(**facts))
    return combined(engine, node.op, left, right, node.right, node.left)


EXPRESSIONS: dict[type[ast.expr], Callable[[Engine, Any], Value]] = {
    ast.Constant: constant,
    ast.Name: name,
    ast.Attribute: attribute,
    ast.Subscript: subscript,
    ast.Tuple: sequence,
    ast.List: sequence,
    ast.Starred: inner,
    ast.Await: inner,
    ast.Lambda: function,
    ast.NamedExpr: named_expression,
    ast.Yield: generator_yield,
    ast.YieldFrom: generator_yield,
    ast.IfExp: conditional,
    ast.BoolOp: boolean,
    ast.Compare: comparison,
    ast.UnaryOp: unary,
    ast.BinOp: binary,
    ast.ListComp: comprehension,
    ast.GeneratorExp: comprehension,
    ast.SetComp: comprehension,
    ast.DictComp: dictionary_comprehension,
    ast.Dict: mapping,
    ast.Call: call,
}
