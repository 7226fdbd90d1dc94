"""Sums, products and quotients of tensors: a loss remembers what it was divided by and multiplied with."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gradlab.audit.interpreter.canonical_text import canonical
from gradlab.audit.knowledge import value_ranges
from gradlab.audit.knowledge.losses import chained
from gradlab.audit.trace.values import Value

if TYPE_CHECKING:
    from gradlab.audit.interpreter.interpreter import Interpreter


def combined(
    it: Interpreter,
    op: ast.operator,
    left: Value,
    right: Value,
    right_node: ast.expr,
    left_node: ast.expr | None = None,
) -> Value:
    """Arithmetic on tensors: a loss remembers what it was divided by and multiplied with."""
    if left.kind != "tensor" and right.kind != "tensor":
        return Value()
    word, tokens = value_ranges.arithmetic(it, right_node if left_node is None else left_node, op, left, right)
    made = sum_or_product(it, op, left, right, right_node, left_node)
    made.data["range"] = word
    made.data["linear"] = linear(op, left, right)
    made.data["made_of"] = (left, right)
    made.data["compared"] = value_ranges.compared(op, left, right)
    if tokens:
        made.data["roots"] = made.data.get("roots", frozenset()) | tokens
    return made


def linear(op: ast.operator, left: Value, right: Value) -> bool:
    """Whether a result is a model's output, shifted or times something; the terms of a sum are asked for themselves."""
    one, two = bool(left.data.get("linear")), bool(right.data.get("linear"))
    if isinstance(op, (ast.Add, ast.Sub)):
        return (one or two) and "number" in (left.kind, right.kind)
    return (one and isinstance(op, (ast.Mult, ast.Div))) or (two and isinstance(op, ast.Mult))


def sum_or_product(
    it: Interpreter, op: ast.operator, left: Value, right: Value, right_node: ast.expr, left_node: ast.expr | None
) -> Value:
    if left.kind == "tensor" and right.kind == "tensor" and isinstance(op, (ast.Add, ast.Sub)):
        data = {
            **left.data,
            "choice": None,
            "roots": left.data.get("roots", frozenset()) | right.data.get("roots", frozenset()),
        }
        data["parts"] = [*left.data.get("parts", [left]), *right.data.get("parts", [right])]
        if left.data.get("factors") != right.data.get("factors"):
            data["factors"] = [*left.data.get("factors", []), *right.data.get("factors", [])]
        data["chain"] = chained([left, right])
        data["opaque"] = bool(left.data.get("opaque") or right.data.get("opaque"))
        del data["choice"]
        return Value("tensor", "", data)
    one, other, node = (left, right, right_node) if left.kind == "tensor" else (right, left, left_node)
    data = {k: v for k, v in one.data.items() if k != "choice"}
    if isinstance(op, (ast.Div, ast.Mult, ast.FloorDiv)) and node is not None:
        text = canonical(it, node)
        sign = "/" if isinstance(op, ast.Div) and one is left else "*"
        data["factors"] = [*data.get("factors", []), (sign, text, other)]
    elif other.kind == "unknown" and other.data.get("opaque"):
        data["opaque"] = True
    if other.kind == "tensor":
        data["roots"] = data.get("roots", frozenset()) | other.data.get("roots", frozenset())
    return Value("tensor", "", data)
