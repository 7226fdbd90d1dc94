"""Arithmetic on the number of an iteration: which micro-batches end a window."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from gradlab.audit.interpreter.canonical_text import canonical
from gradlab.audit.trace.conditions import WINDOW
from gradlab.audit.trace.engine import Engine

OfIteration = Callable[[int], Any]
WORDS = {"Lt": ("GtE", True), "LtE": ("Gt", True), "NotEq": ("Eq", True)}
"""What a comparison is the negation of."""
COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    **{ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Gt: operator.gt},
    **{ast.GtE: operator.ge, ast.Lt: operator.lt, ast.LtE: operator.le},
}


def arithmetic(engine: Engine, node: ast.expr, periods: set[str]) -> OfIteration | None:
    """An expression as a function of the iteration's number; None if it is not of numbers, the index and a period.

    periods: the periods that are met are added to it.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        constant = node.value
        return lambda k: constant
    if isinstance(node, ast.BinOp):
        return operation(engine, node, periods)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        one, two = arithmetic(engine, node.left, periods), arithmetic(engine, node.comparators[0], periods)
        compare = COMPARISONS.get(type(node.ops[0]))
        if one is None or two is None or compare is None:
            return None
        return lambda k: compare(one(k), two(k))
    if isinstance(node, (ast.Name, ast.Attribute)) or is_entry(node):
        value = engine.value(node)
        if value.kind == "index":
            return lambda k: k + value.offset
        if value.kind == "number" or (value.kind == "unknown" and value.birth <= engine.entered):
            periods.add(f"{value.name}#{value.number}")
            return lambda k: WINDOW
    return None


def is_entry(node: ast.AST) -> bool:
    """Whether this is the entry of a dictionary under a key of the text, as `state["step"]`."""
    return (
        isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
    )


def operation(engine: Engine, node: ast.BinOp, periods: set[str]) -> OfIteration | None:
    modulo = isinstance(node.op, ast.Mod)
    inner: set[str] = set()
    left = arithmetic(engine, node.left, set() if modulo else periods)
    right = arithmetic(engine, node.right, inner if modulo else periods)
    if modulo:
        if isinstance(node.right, ast.Constant):
            inner = {str(node.right.value)}
        if inner == {"1"}:
            return None
        periods |= inner
    if left is None or right is None:
        return None
    if modulo:
        return lambda k: left(k) % right(k) if right(k) else 0
    if isinstance(node.op, ast.Add):
        return lambda k: left(k) + right(k)
    return (lambda k: left(k) - right(k)) if isinstance(node.op, ast.Sub) else None


def counter(engine: Engine, node: ast.expr) -> tuple[str, bool] | None:
    """A comparison of a counter, and whether it is negated: `count + 1 >= n` after counting is `not count < n`."""
    if not isinstance(node, ast.Compare) or (left := engine.value(node.left)).kind != "index":
        return None
    word, negated = WORDS.get(name := type(node.ops[0]).__name__, (name, False))
    return f"index+{left.offset} {word} {canonical(engine, node.comparators[0])}", negated
