"""The text of an expression with names replaced by what they are bound to."""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import TYPE_CHECKING

from gradlab.audit.source.syntax import dotted, walk
from gradlab.audit.trace.values import Value

if TYPE_CHECKING:
    from gradlab.audit.interpreter.interpreter import Interpreter


def canonical(it: Interpreter, node: ast.AST) -> str:
    """The text of an expression with every name replaced by the value that it is bound to, so that aliases agree."""
    if isinstance(node, (ast.Name, ast.Attribute)):
        value = it.value(node)
        if value.kind == "number" and not value.name:
            return repr(value.data.get("value"))
        if value.kind == "index":
            return f"index+{value.data['offset']}"
        if value.kind in ("external", "function"):
            return value.name
        if value.kind == "method" and (owner := value.data.get("self")) is not None:
            return f"{owner.name}#{owner.number}.{value.name}"
        return f"{value.name}#{value.number}"
    if isinstance(node, ast.Constant):
        return repr(node.value)
    if isinstance(node, ast.Call):
        return f"{canonical(it, node.func)}({', '.join(canonical(it, a) for a in node.args)})"
    parts = [canonical(it, child) for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr_context)]
    signs = {"Mod": "%", "Eq": "==", "NotEq": "!=", "Add": "+", "Sub": "-", "Lt": "<", "Div": "/", "Mult": "*"}
    name = type(node).__name__
    return signs.get(name, name) if not parts else f"{name}({', '.join(parts)})"


def youngest(it: Interpreter, node: ast.AST) -> int:
    return max((value.birth for value in parts(it, node)), default=0)


def parts(it: Interpreter, node: ast.AST) -> list[Value]:
    """The values of the names in an expression, without following its calls again."""
    return [it.value(part) for part in named(node)]


@lru_cache(maxsize=20000)
def named(node: ast.AST) -> tuple[ast.Name | ast.Attribute, ...]:
    """The names in an expression, and what is reached from them by dots alone."""
    found = [part for part in walk(node) if isinstance(part, (ast.Name, ast.Attribute)) and dotted(part)]
    return tuple(sorted(found, key=lambda part: isinstance(part, ast.Attribute)))
