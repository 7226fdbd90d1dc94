"""Context managers of the project: what they do before their `yield`, around the block, and after it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gradlab.audit.interpreter.classes import method_of
from gradlab.audit.interpreter.function_calls import enter
from gradlab.audit.trace.conditions import Formula, joined, negation
from gradlab.audit.trace.events import Block, Event, If, Region
from gradlab.audit.trace.values import Value

if TYPE_CHECKING:
    from gradlab.audit.interpreter.interpreter import Interpreter

Paused = tuple[list, list[Region], list, Value | None]
"""What happens before a yield, the regions that it is in, what happens after, and what it hands out."""


def managed(it: Interpreter, items: list, name: str) -> Value:
    """The context that a generator's events make; what comes before its yield has happened now."""
    found = paused(items, it.regions)
    if found is None:
        return Value("context", name, {"word": "unknown"})
    before, regions, after, handed = found
    it.out += before
    data = {"word": "followed", "regions": regions, "after": after}
    return Value("context", name, data if handed is None else {**data, "as": handed})


def paused(items: list, outer: list[Region]) -> Paused | None:
    for i, item in enumerate(items):
        if isinstance(item, Event) and item.kind == "yield":
            return items[:i], [r for r in item.regions if r not in outer], items[i + 1 :], item.value
        if isinstance(item, Block) and (found := paused(item.body, outer)) is not None:
            before = Block(item.node, item.path, found[0], item.name)
            after = Block(item.node, item.path, found[2], item.name)
            return [*items[:i], before], found[1], [after, *items[i + 1 :]], found[3]
        if isinstance(item, If):
            one, two = paused(item.then, outer), paused(item.other, outer)
            if one is not None and two is not None:
                first, last = If(item.test, one[0], two[0], item.node), If(item.test, one[2], two[2], item.node)
                regions = [*under(item.test, one[1]), *under(negation(item.test), two[1])]
                return [*items[:i], first], regions, [last, *items[i + 1 :]], one[3] or two[3]
            if one is not None or two is not None:
                return None
    return None


def under(test: Formula, regions: list[Region]) -> list[Region]:
    return [Region(r.kind, joined("and", [test, r.when]), r.node, r.value, r.data) for r in regions]


def begun(it: Interpreter, value: Value, at: ast.AST) -> Value | None:
    """What the __enter__ of an object of the project gives back; None where there is none."""
    found = method_of(value, "__enter__")
    return None if found is None else enter(it, found[0], found[1], [], {}, value, at, it.world(found[1]))


def ended(it: Interpreter, value: Value, at: ast.AST) -> None:
    """What happens when a block is left."""
    for when, one in value.data.get("choice", [(None, value)]):
        after = one.data.get("after", []) if one.kind == "context" else []
        it.out += after if when is None else [If(when, after, [])] if after else []
    if (found := method_of(value, "__exit__")) is not None:
        enter(it, found[0], found[1], [], {}, value, at, it.world(found[1]))
