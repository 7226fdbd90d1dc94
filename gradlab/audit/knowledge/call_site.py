"""A call of something known: an installed name, or a method of a value of a known kind."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from gradlab.audit.source.syntax import dotted
from gradlab.audit.trace.engine import Engine
from gradlab.audit.trace.values import Value

BOUNDS = ("max_norm", "gradient_clip_val", "max_grad_norm", "clip_grad")
"""Keywords of a bound on the norm."""


@dataclass
class CallSite:
    """`name`: the dotted name of a function, or the name of a method."""

    engine: Engine
    node: ast.Call
    name: str
    args: list[Value]
    keywords: dict[str, Value]

    @classmethod
    def of(cls, engine: Engine, node: ast.Call, args: list[Value], keywords: dict[str, Value]) -> CallSite:
        func = node.func
        return cls(engine, node, func.attr if isinstance(func, ast.Attribute) else dotted(func), args, keywords)

    @property
    def tail(self) -> str:
        return self.name.split(".")[-1]

    @property
    def first(self) -> Value | None:
        return self.args[0] if self.args else None

    @property
    def values(self) -> list[Value]:
        """All arguments."""
        return [*self.args, *self.keywords.values()]

    @property
    def expressions(self) -> list[ast.expr]:
        """All arguments."""
        return [*self.node.args, *(k.value for k in self.node.keywords)]

    @property
    def compared(self) -> list[Value]:
        """The arguments of a loss function: the positional ones, and those that PyTorch names input and target."""
        return [*self.args, *(self.keywords[word] for word in ("input", "target") if word in self.keywords)]

    def keyword(self, name: str) -> object:
        """The constant that a keyword is given."""
        return self.keywords[name].value if name in self.keywords else None

    def expression(self, name: str) -> ast.expr | None:
        """The expression that a keyword is given."""
        return next((k.value for k in self.node.keywords if k.arg == name), None)

    def emit(self, kind: str, value: Value | None = None, **facts: Any) -> None:
        self.engine.emit(kind, self.node, value, **facts)

    def emit_clip(self, value: Value | None, by_value: bool = False, position: int = 1, **facts: Any) -> None:
        """Gradients are clipped; position: of the norm that is allowed, among the arguments."""
        given = [v for name, v in self.keywords.items() if name in BOUNDS] + self.args[position : position + 1]
        self.emit("clip", value, call=self.node, by_value=by_value, bound=next(iter(given), None), **facts)
