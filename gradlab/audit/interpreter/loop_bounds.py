"""The index of a loop against a bound: what changes once, what holds in the first turn, what in the last."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from gradlab.audit.interpreter.canonical_text import canonical, youngest
from gradlab.audit.trace.values import Value

if TYPE_CHECKING:
    from gradlab.audit.interpreter.interpreter import Interpreter


def since_first(at: Callable | None, used: list[Value], negated: bool) -> Callable | None:
    """A comparison as a function of the turn, where the number of the first one is known."""
    begun = all(value.kind == "index" and value.data.get("turn") and value.data.get("stop", "0") for value in used)
    if at is None or not begun:
        return None
    return (lambda k: not at(k)) if negated else at


def bounding(it: Interpreter, node: ast.expr) -> bool:
    """i < n, where i counts the turns of a loop and n is older than that."""
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE)):
        return False
    sides = node.left, node.comparators[0]
    for one, other in (sides, sides[::-1]):
        value = it.value(one)
        if value.kind == "index" and value.data.get("turn") and youngest(it, other) < youngest(it, one):
            return True
    return False


def ending(it: Interpreter, node: ast.expr) -> bool:
    """i == n - 1, i + 1 != n or i < n - 1 in a loop over range(n)."""
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], (ast.Eq, ast.NotEq, ast.Lt)):
        return False
    left, right = it.value(node.left), node.comparators[0]
    if left.kind != "index" or not left.data.get("stop"):
        return False
    missing = 1 - left.data["offset"]
    if isinstance(right, ast.BinOp) and isinstance(right.op, ast.Sub) and isinstance(right.right, ast.Constant):
        return canonical(it, right.left) == left.data["stop"] and right.right.value == missing
    if isinstance(right, ast.Constant) and left.data["stop"].isdigit():
        return right.value == int(left.data["stop"]) - missing
    return missing == 0 and canonical(it, right) == left.data["stop"]
