"""Weights that a program updates by itself, without an optimizer: `w -= rate * w.grad`."""

from __future__ import annotations

import ast
from functools import lru_cache

from gradlab.audit.knowledge.known_names import OPTIMIZER
from gradlab.audit.source.syntax import dotted, walk


def plain(node: ast.expr) -> str:
    """The dotted name of a tensor, `.data` left out."""
    return dotted(weights(node))


@lru_cache(maxsize=1000)
def descending(scope: ast.AST) -> frozenset[str]:
    """The names that go down their own gradients somewhere in a function, or at the top of a file."""
    found = set()
    for node in walk(scope):
        target: ast.expr | None = None
        parts: list[ast.expr] = []
        down = False
        if isinstance(node, ast.AugAssign):
            target, parts = node.target, [node.value]
            down = isinstance(node.op, ast.Sub) or minus(parts)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
            target, parts = node.targets[0], [node.value]
            down = isinstance(node.value.op, ast.Sub) and isinstance(target, ast.Attribute)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("sub_", "add_"):
            target, parts = node.func.value, [*node.args, *(k.value for k in node.keywords)]
            down = node.func.attr == "sub_" or minus(parts)
        name = plain(target) if target is not None and down else ""
        inner = [p for part in parts for p in walk(part) if isinstance(p, ast.Attribute) and p.attr == "grad"]
        if name and name in [plain(p.value) for p in inner]:
            found.add(name)
    return frozenset(found)


@lru_cache(maxsize=1000)
def optimized(scope: ast.AST) -> frozenset[str]:
    """Names that stand for weights in a function: an optimizer is made of them, or a loop goes over a list of them."""
    found = set()
    for node in walk(scope):
        if isinstance(node, ast.Call) and OPTIMIZER.match(dotted(node.func).split(".")[-1]):
            lists = (a for a in [*node.args, *(k.value for k in node.keywords)] if isinstance(a, (ast.List, ast.Tuple)))
            found |= {name for a in lists for item in a.elts if (name := dotted(item))}
        elif isinstance(node, ast.For) and isinstance(node.target, ast.Name) and dotted(node.iter):
            found.add(node.target.id)
    return frozenset(found)


def weights(node: ast.expr) -> ast.expr:
    """The tensor whose `.data` this is, or itself."""
    return node.value if isinstance(node, ast.Attribute) and node.attr == "data" else node


def minus(parts: list[ast.expr]) -> bool:
    return any(isinstance(p, ast.UnaryOp) and isinstance(p.op, ast.USub) for part in parts for p in walk(part))
