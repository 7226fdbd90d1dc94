"""What a name of the audited program stands for, as far as its text shows."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

births = itertools.count(1)
"""A value born after a loop was entered may differ from one iteration to the next."""


@dataclass(eq=False)
class Value:
    """`kind` is a word: optimizer, scaler, scheduler, model, ddp, params, tensor, index, number, list, unknown."""

    kind: str = "unknown"
    name: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    birth: int = -1

    def __post_init__(self) -> None:
        self.number = next(births)
        if self.birth < 0:
            self.birth = self.number
        self.attributes: dict[str, Value] = {}

    def root(self) -> Value:
        """The model that a wrapper or its parameters come from, or the value itself."""
        value, seen = self, 0
        while (inner := value.data.get("of")) is not None and seen < 10:
            value, seen = inner, seen + 1
        return value


def tensor(name: str = "", **data: Any) -> Value:
    return Value("tensor", name, dict(data))


def number(value: Any, name: str = "") -> Value:
    return Value("number", name, {"value": value})


def several(values: list[Value]) -> Value:
    return Value("list", data={"items": values})


CALLED = {"function", "method", "lambda", "bound", "partial"}
"""Kinds of what can be called and followed."""


def dictionary(items: dict[str, Value]) -> Value:
    made = Value("dict", data={"items": list(items.values())})
    made.attributes = {f"[{key!r}]": value for key, value in items.items()}
    return made


def members(value: Value) -> list[Value]:
    """The values that an argument carries: itself, the items of a list, the alternatives of a choice."""
    if value.kind == "list":
        return [found for item in value.data["items"] for found in members(item)]
    if "choice" in value.data:
        return [found for _, item in value.data["choice"] for found in members(item)]
    return [value]


def every(value: Value) -> list[Value]:
    """The values inside lists and dictionaries, however deep."""
    if value.kind in ("list", "dict"):
        return [v for item in value.data["items"] for v in every(item)]
    return [value]
