"""Lists, dictionaries and iterables of values, and what they contain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradlab.audit.trace.values import Value

OTHERS = "**"
"""Attribute of a dictionary that may have other items than those that it was made with."""


def number(value: Any) -> Value:
    return Value("number", value=value)


def several(values: list[Value]) -> Value:
    return Value("list", items=values)


def dictionary(items: Mapping[str, Value]) -> Value:
    made = Value("dict", items=list(items.values()))
    made.attributes = {f"[{key!r}]": value for key, value in items.items()}
    return made


def dictionary_of_pairs(pairs: Value) -> Value | None:
    """dict() of a dictionary, or of pairs: under names, or whose second parts are optimizers or schedules."""
    if pairs.kind == "dict":
        made = pairs.derived("dict", items=[*pairs.items])
        made.attributes = {**pairs.attributes}
        return made
    rows = [row.items for row in pairs.items if row.kind == "list" and len(row.items) == 2]
    if pairs.kind != "list" or not rows or len(rows) < len(pairs.items):
        return None
    named = all(isinstance(key.value, str) for key, _ in rows)
    if not named and any(value.kind not in ("optimizer", "scheduler") for _, value in rows):
        return None
    made = Value("dict", items=[value for _, value in rows])
    made.attributes = {f"[{key.value!r}]": value for key, value in rows}
    return made


def members(value: Value) -> list[Value]:
    """The values that an argument carries: itself, the items of a list, the alternatives of a choice."""
    if value.kind == "list":
        return [found for item in value.items for found in members(item)]
    if value.choice:
        return [found for _, item in value.choice for found in members(item)]
    return [value]


def parameters_of(values: list[Value]) -> Value:
    """Parameters of several models one after the other; what is not known to be parameters is among the items."""
    if len(values) == 1:
        return values[0]
    first = next(value for value in values if value.kind == "params")
    return first.derived("params", items=[item for value in values for item in every(value)])


def spend(branches: int, over: Value) -> None:
    """Something goes through a value: a generator of parameters is empty from now on, unless that may not happen."""
    for one in every(over):
        one.spent = one.spent or 0 <= one.branches >= branches


def collected(branches: int, over: Value) -> Value:
    """A list of the items of a value."""
    if over.kind != "params" or over.branches < 0:
        return over
    made = over.derived("params", branches=-1)
    spend(branches, over)
    return made


def every(value: Value) -> list[Value]:
    """The values inside lists, dictionaries and parameters of several models, however deep."""
    if value.kind in ("list", "dict") or (value.kind == "params" and value.items):
        return [v for item in value.items for v in every(item)]
    return [value]


def filled(over: Value) -> Value | None:
    """What stands for the items of a list that a loop fills; None for anything else, or where they may be anything."""
    first = over.appended if over.kind == "list" and not over.items else None
    if first is None or first.blank:
        return None
    if first.kind != "tensor":
        return first
    return first.derived("tensor", roots=first.roots | over.marks, traced=first.traced)


def element(over: Value) -> Value:
    """What one iteration of a loop over a value binds."""
    if over.kind == "params":
        param = over.derived("param")
        return several([number("name"), param]) if over.named else param
    if over.kind == "groups":
        return over.derived("group")
    if over.kind == "enumerated":
        index = Value("index", "i", offset=over.start, of_loop=True)
        telling = over.inner.kind in ("params", "tensor", "detached", "zipped")
        return several([index, element(over.inner) if telling else Value("unknown", "batch")])
    if over.kind == "counted":
        return Value("index", "i", stop=over.stop, stride=over.stride, of_loop=True)
    if over.kind == "list" and over.items:
        words = {one.value for one in over.items if one.kind == "number" and isinstance(one.value, str)}
        return Value() if len(words) > 1 else over.items[0]  # `for phase in ("train", "valid")`
    if (first := filled(over)) is not None:
        return first
    if over.kind in ("optimizer", "scheduler", "scaler", "tensor", "detached"):
        return over
    if over.kind == "zipped":
        return several([element(v) for v in over.items])
    return Value()
