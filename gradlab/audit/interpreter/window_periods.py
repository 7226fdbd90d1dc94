"""Arithmetic on the number of an iteration: which micro-batches end a window."""

from __future__ import annotations

import ast
import operator
from typing import TYPE_CHECKING

from gradlab.audit.interpreter.canonical_text import canonical
from gradlab.audit.trace.conditions import WINDOW

if TYPE_CHECKING:
    from gradlab.audit.interpreter.interpreter import Interpreter

WORDS = {"Lt": ("GtE", True), "LtE": ("Gt", True), "NotEq": ("Eq", True)}
"""What a comparison is the negation of."""
COMPARED = {
    **{ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Gt: operator.gt},
    **{ast.GtE: operator.ge, ast.Lt: operator.lt, ast.LtE: operator.le},
}


def arithmetic(it: Interpreter, node: ast.expr, periods: set[str]):
    """A function of the iteration's number, where every part is a number, the loop's index or the period."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return lambda k: node.value
    if isinstance(node, ast.BinOp):
        left = arithmetic(it, node.left, periods if not isinstance(node.op, ast.Mod) else set())
        inner: set[str] = set()
        right = arithmetic(it, node.right, inner if isinstance(node.op, ast.Mod) else periods)
        if isinstance(node.op, ast.Mod):
            if isinstance(node.right, ast.Constant):
                inner = {str(node.right.value)}
            if inner == {"1"}:
                return None
            periods |= inner
        if left is None or right is None:
            return None
        if isinstance(node.op, ast.Add):
            return lambda k: left(k) + right(k)
        if isinstance(node.op, ast.Sub):
            return lambda k: left(k) - right(k)
        if isinstance(node.op, ast.Mod):
            return lambda k: left(k) % right(k) if right(k) else 0
        return None
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        one, two = arithmetic(it, node.left, periods), arithmetic(it, node.comparators[0], periods)
        if one is None or two is None:
            return None
        compare = COMPARED.get(type(node.ops[0]))
        return (lambda k: compare(one(k), two(k))) if compare is not None else None
    if isinstance(node, (ast.Name, ast.Attribute)):
        value = it.value(node)
        if value.kind == "index":
            return lambda k: k + value.data["offset"]
        if (value.kind in ("number", "unknown") and value.birth <= it.entered) or value.kind == "number":
            periods.add(f"{value.name}#{value.number}")
            return lambda k: WINDOW
    return None


def counted(it: Interpreter, node: ast.expr) -> tuple[str, bool] | None:
    """A comparison of a counter and whether it is negated: `count + 1 >= n` is `not count < n` once it has counted."""
    if not isinstance(node, ast.Compare) or (left := it.value(node.left)).kind != "index":
        return None
    word, negated = WORDS.get(name := type(node.ops[0]).__name__, (name, False))
    return f"index+{left.data['offset']} {word} {canonical(it, node.comparators[0])}", negated
