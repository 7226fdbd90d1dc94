"""The index of a loop compared with a bound: what changes once, what holds in the first iteration, what in the last."""

from __future__ import annotations

import ast
from collections.abc import Callable

from gradlab.audit.interpreter.canonical_text import canonical, youngest
from gradlab.audit.trace.engine import Engine
from gradlab.audit.trace.values import Value


def since_first(
    at: Callable[[int], object] | None, used: list[Value], negated: bool, node: ast.expr
) -> Callable[[int], object] | None:
    """A comparison as a function of the iteration, where the number of the first one is known."""
    zero = ast.unparse(getattr(node, "comparators", [node])[0]) == "0"
    known = all(value.kind == "index" and value.of_loop and value.stop != "" for value in used)
    known = known and all(not value.stride or (zero and not value.offset) for value in used)
    if at is None or not known:
        return None
    return (lambda k: not at(k)) if negated else at


def changes_once(engine: Engine, node: ast.expr) -> bool:
    """i < n, where i counts the iterations of a loop and n is older than the loop."""
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE)):
        return False
    sides = node.left, node.comparators[0]
    for one, other in (sides, sides[::-1]):
        value = engine.value(one)
        if value.kind == "index" and value.of_loop and youngest(engine, other) < youngest(engine, one):
            return True
    return False


def is_last(engine: Engine, node: ast.expr) -> bool:
    """i == n - 1, i + 1 != n or i < n - 1 in a loop over range(n); i + m >= n in one over range(0, n, m)."""
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], (ast.Eq, ast.NotEq, ast.Lt, ast.GtE)):
        return False
    left, right = engine.value(node.left), node.comparators[0]
    if reaches_stop(engine, node.left, right) or reaches_stop(engine, right, node.left):
        return True
    if left.kind != "index" or not left.stop or left.stride or isinstance(node.ops[0], ast.GtE):
        return False
    missing = 1 - left.offset
    if isinstance(right, ast.BinOp) and isinstance(right.op, ast.Sub) and isinstance(right.right, ast.Constant):
        return canonical(engine, right.left) == left.stop and bool(right.right.value == missing)
    if isinstance(right, ast.Constant) and left.stop.isdigit():
        return bool(right.value == int(left.stop) - missing)
    return missing == 0 and canonical(engine, right) == left.stop


def is_past_the_last(engine: Engine, node: ast.Compare) -> bool:
    """i == n or i != n in a loop over range(n): an index that never gets there."""
    if not isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
        return False
    index, bound = engine.value(node.left), node.comparators[0]
    counts = index.kind == "index" and index.of_loop and bool(index.stop) and not index.stride and not index.offset
    return counts and canonical(engine, bound) == index.stop


def reaches_stop(engine: Engine, one: ast.expr, other: ast.expr) -> bool:
    """i + m and n, or n - m and i, in a loop over range(0, n, m)."""
    if not isinstance(one, ast.BinOp) or not isinstance(one.op, (ast.Add, ast.Sub)):
        return False
    adds = isinstance(one.op, ast.Add)
    index, stop = (engine.value(one.left), other) if adds else (engine.value(other), one.left)
    there = index.kind == "index" and index.stride and not index.offset
    return bool(there) and (canonical(engine, one.right), canonical(engine, stop)) == (index.stride, index.stop)
