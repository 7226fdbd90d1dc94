"""Names and what they are bound to."""

from __future__ import annotations

import ast
from functools import lru_cache

from gradlab.audit.knowledge.known_names import Usage
from gradlab.audit.trace.values import Value


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


@lru_cache(maxsize=1000)
def usage(node: ast.AST) -> Usage:
    return Usage(node)
