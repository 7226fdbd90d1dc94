"""The text of an expression with names replaced by what they are bound to."""

from __future__ import annotations

import ast
from functools import lru_cache

from gradlab.audit.source.syntax import dotted, walk
from gradlab.audit.trace.engine import Engine
from gradlab.audit.trace.values import Value

SIGNS = {"Mod": "%", "Eq": "==", "NotEq": "!=", "Add": "+", "Sub": "-", "Lt": "<", "Div": "/", "Mult": "*"}


def canonical(engine: Engine, node: ast.AST) -> str:
    """The text of an expression with every name replaced by the value that it is bound to, so that aliases agree."""
    if isinstance(node, (ast.Name, ast.Attribute)):
        value = engine.value(node)
        if value.kind == "number" and not value.name:
            return repr(value.value)
        if value.kind == "index":
            return f"index+{value.offset}"
        if value.kind in ("external", "function"):
            return value.name
        if value.kind == "method" and value.owner is not None:
            return f"{value.owner.name}#{value.owner.number}.{value.name}"
        return f"{value.name}#{value.number}"
    if isinstance(node, ast.Constant):
        return repr(node.value)
    if isinstance(node, ast.Call):
        return f"{canonical(engine, node.func)}({', '.join(canonical(engine, a) for a in node.args)})"
    children = (child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr_context))
    parts = [canonical(engine, child) for child in children]
    name = type(node).__name__
    return f"{name}({', '.join(parts)})" if parts else SIGNS.get(name, name)


def youngest(engine: Engine, node: ast.AST) -> int:
    """The birth of the youngest value in an expression."""
    return max((value.birth for value in parts(engine, node)), default=0)


def parts(engine: Engine, node: ast.AST) -> list[Value]:
    """The values of the names in an expression; its calls are not followed again."""
    return [engine.value(part) for part in names(node)]


@lru_cache(maxsize=20000)
def names(node: ast.AST) -> tuple[ast.Name | ast.Attribute, ...]:
    """The names in an expression, then their attributes, `a.b.c` included."""
    found = [part for part in walk(node) if isinstance(part, (ast.Name, ast.Attribute)) and dotted(part)]
    return tuple(sorted(found, key=lambda part: isinstance(part, ast.Attribute)))
