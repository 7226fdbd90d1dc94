"""Nodes of a syntax tree, quickly: ast.walk looks every node's fields up by name, which is most of an audit's time."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from typing import TypeVar

Node = TypeVar("Node", bound=ast.AST)


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """This node and every node below it in the order of the text, without Load and Store."""
    todo = [node]
    while todo:
        node = todo.pop()
        yield node
        todo += children(node)


def children(node: ast.AST) -> list[ast.AST]:
    """The last one first."""
    found: list[ast.AST] = []
    for value in node.__dict__.values():
        if type(value) is list:
            found += [item for item in value if isinstance(item, ast.AST)]
        elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
            found.append(value)
    found.reverse()
    return found


def dotted(node: ast.AST) -> str:
    """`a.b.c`; the empty string for everything else, and for chains longer than anyone writes."""
    tail: list[str] = []
    while isinstance(node, ast.Attribute) and len(tail) < 50:
        tail.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(tail)]) if isinstance(node, ast.Name) else ""


def called_name(node: ast.AST | None) -> str:
    """The last part of the name that a call calls; the empty string for what is no call of a name."""
    return dotted(node.func).split(".")[-1] if isinstance(node, ast.Call) else ""


@lru_cache(maxsize=20000)
def text(node: ast.AST) -> str:
    """An expression as source text."""
    return ast.unparse(node)


@lru_cache(maxsize=20000)
def kinds(node: ast.AST) -> frozenset[type]:
    """The types of the nodes in an expression."""
    return frozenset(type(part) for part in walk(node))


class Nodes:
    """All nodes of a tree by their type, walked once for every rule that asks."""

    def __init__(self, tree: ast.AST | None):
        self.found: dict[type, list[ast.AST]] = {}
        for node in walk(tree) if tree is not None else ():
            self.found.setdefault(type(node), []).append(node)

    def of(self, kind: type[Node]) -> list[Node]:
        return self.found.get(kind, [])  # type: ignore[return-value]


def defaults_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, ast.expr | None]:
    """The defaults of a function's parameters, by their names."""
    names = [a.arg for a in [*node.args.posonlyargs, *node.args.args]]
    found: dict[str, ast.expr | None] = dict(zip(names[len(names) - len(node.args.defaults) :], node.args.defaults))
    return found | {a.arg: d for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults)}
