"""Sums, products and quotients of tensors: a loss remembers what it was divided by and multiplied with."""

from __future__ import annotations

import ast
from typing import Any

from gradlab.audit.knowledge import bootstrapping, value_ranges
from gradlab.audit.knowledge.losses import chained
from gradlab.audit.trace.engine import Engine
from gradlab.audit.trace.provenance import is_traced, provenance
from gradlab.audit.trace.tensors import of_one_number
from gradlab.audit.trace.values import Factor, Value


def combined(
    engine: Engine,
    op: ast.operator,
    left: Value,
    right: Value,
    right_node: ast.expr,
    left_node: ast.expr | None = None,
) -> Value:
    """The result of an operator; unknown where neither side is a tensor."""
    if left.kind != "tensor" and right.kind != "tensor":
        return Value(factors=quotient(engine, op, left, right, right_node))
    word, tokens = value_ranges.arithmetic(engine, right_node if left_node is None else left_node, op, left, right)
    if left.kind == "tensor" and right.kind == "tensor" and isinstance(op, (ast.Add, ast.Sub)):
        for side, at in ((left, left_node), (right, right_node)):
            place_term(engine, side, at)
        made = tensor_sum(left, right)
    else:
        made = scaled(engine, op, left, right, right_node, left_node)
    if isinstance(op, ast.Pow) and right.value == 2:
        tokens |= bootstrapping.error(engine, right_node if left_node is None else left_node, left)
    facts = provenance(engine, right_node, [left, right])
    made.noise = isinstance(op, ast.Mult) and left.noise != right.noise
    mean, deviation = (right, left) if left.noise else (left, right)
    if isinstance(op, ast.Add) and deviation.noise and mean.layers and (deviation.layers or deviation.lost):
        sample = drawn(engine, right_node, mean.layers)
        facts["layers"] |= {sample} if deviation.layers and facts["layers"] else frozenset()
        facts["lost"] |= {(sample, right_node, engine.module.path)} if not facts["layers"] else frozenset()
    made.constants = constants(op, left, right)
    made.update(
        range=word,
        linear=linear(op, left, right),
        made_of=(left, right),
        numbers=(*left.numbers, *right.numbers) if isinstance(op, ast.Add) else made.numbers,
        compared=value_ranges.compared(op, left, right),
        roots=made.roots | tokens,
        **facts,
    )
    return made


def quotient(engine: Engine, op: ast.operator, left: Value, right: Value, right_node: ast.expr) -> tuple[Factor, ...]:
    """What an unknown value, which may turn out to be a loss, was divided by."""
    if left.kind != "unknown" or not isinstance(op, ast.Div):
        return ()
    return (*left.factors, factor(engine, "/", right, right_node))


def factor(engine: Engine, sign: str, value: Value, node: ast.expr, each: bool = False) -> Factor:
    """A factor; `1 / n` is a division by n."""
    made, scope = engine.origins.get(value.number, (node, engine.scope))
    if sign == "*" and isinstance(made, ast.BinOp) and isinstance(made.op, ast.Div) and scope is engine.scope:
        one, divisor = made.left, made.right
        if isinstance(one, ast.Constant) and one.value == 1 and isinstance(divisor, (ast.Name, ast.Attribute)):
            return Factor("/", engine.canonical(divisor), engine.value(divisor), node, engine.module.path, each)
    return Factor(sign, engine.canonical(node), value, node, engine.module.path, each)


def drawn(engine: Engine, node: ast.AST, layers: frozenset[Value]) -> Value:
    """What stands for `mean + noise * deviation`, which is written so for its gradient: the same at each place."""
    if node not in engine.samples:
        engine.samples[node] = Value("sample", args=tuple(layers))
    return engine.samples[node]


def constants(op: ast.operator, left: Value, right: Value) -> tuple[Value, ...]:
    """The terms of a sum of losses that have lost their graphs, of both sides."""
    known = (*left.constants, *right.constants)
    if not isinstance(op, (ast.Add, ast.Sub)):
        return known if isinstance(op, (ast.Mult, ast.Div)) else ()
    for one, other in ((left, right), (right, left)):
        cut = one.lost and one.cut is not None and is_traced(one) and not one.layers and not one.numbers
        if cut and of_one_number(other):
            known = (*known, one)
    return known


def linear(op: ast.operator, left: Value, right: Value) -> bool:
    """Whether a result is a model's output, shifted or times something; the terms of a sum count by themselves."""
    if isinstance(op, (ast.Add, ast.Sub)):
        return (left.linear or right.linear) and "number" in (left.kind, right.kind)
    return (left.linear and isinstance(op, (ast.Mult, ast.Div))) or (right.linear and isinstance(op, ast.Mult))


def tensor_sum(left: Value, right: Value) -> Value:
    facts: dict[str, Any] = {} if left.factors == right.factors else {"factors": (*left.factors, *right.factors)}
    return left.derived(
        "tensor",
        choice=(),
        roots=left.roots | right.roots,
        parts=(*terms(left), *terms(right)),
        chain=chained([left, right]),
        opaque=left.opaque or right.opaque,
        **facts,
    )


def place_term(engine: Engine, value: Value, node: ast.expr | None) -> None:
    """Remember where a term of a sum was made: where it got its name in this function, or here."""
    made, scope = engine.origins.get(value.number, (node, None))
    if not value.parts and (at := made if scope is engine.scope else node) is not None:
        value.term = (at, engine.module.path)


def terms(value: Value) -> tuple[Value, ...]:
    """The terms of a sum, each with what the whole sum was divided by or multiplied with; of anything else itself."""
    of_all = tuple(f for f in value.factors if all(f not in part.factors for part in value.parts))
    if not value.parts or not of_all:
        return value.parts or (value,)
    return tuple(part.derived(part.kind, factors=(*part.factors, *of_all), traced=part.traced) for part in value.parts)


def scaled(
    engine: Engine, op: ast.operator, left: Value, right: Value, right_node: ast.expr, left_node: ast.expr | None
) -> Value:
    """A tensor with a factor more, or shifted."""
    one, other, node = (left, right, right_node) if left.kind == "tensor" else (right, left, left_node)
    made = one.derived("tensor", choice=())
    if isinstance(op, ast.Pow) or other.kind == "tensor":
        made.parts = made.numbers = ()
    elif not is_traced(other):  # a weight that may have a graph
        made.parts = tuple(part.derived(part.kind, part.name) for part in made.parts)
    if isinstance(op, (ast.Div, ast.Mult, ast.FloorDiv)) and node is not None:
        each = one.reduction == "none" and not one.reduced
        sign = "/" if isinstance(op, ast.Div) and one is left else "*"
        made.factors = (*made.factors, factor(engine, sign, other, node, each))
    elif other.kind == "unknown" and other.opaque and not is_traced(other):  # no data
        made.opaque = True
    if other.kind == "tensor":
        made.roots = made.roots | other.roots
    return made
