"""Names and what they are bound to."""

from __future__ import annotations

import ast

from gradlab.audit.known import Usage
from gradlab.audit.values import Value


class Scope:
    def __init__(self, parent: Scope | None, node: ast.AST, module: object):
        self.parent, self.node, self.module = parent, node, module
        self.names: dict[str, Value] = {}

    def find(self, name: str) -> Value | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return None


USAGES: dict[int, tuple[ast.AST, Usage]] = {}


def usage(node: ast.AST) -> Usage:
    if id(node) not in USAGES:
        USAGES[id(node)] = (node, Usage(node))
    return USAGES[id(node)][1]
