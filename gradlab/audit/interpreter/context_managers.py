"""Context managers of the project: what they do before their `yield`, around the block, and after it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from gradlab.audit.trace.conditions import Formula, joined, negation
from gradlab.audit.trace.engine import Engine
from gradlab.audit.trace.event_tree import Block, If, Node
from gradlab.audit.trace.values import Event, Region, Value


class Paused(NamedTuple):
    """A generator at its `yield`: what happens before it, the regions around it, what happens after it."""

    before: list[Node]
    regions: list[Region]
    after: list[Node]
    value: Value | None


def managed(engine: Engine, items: list[Node], name: str) -> Value:
    """The context that a generator's events make; what comes before its `yield` has happened now."""
    found = paused(items, engine.regions)
    if found is None:
        return Value("context", name, word="unknown")
    engine.out += found.before
    return Value(
        "context",
        name,
        word="followed",
        regions=tuple(found.regions),
        after=tuple(found.after),
        entered=found.value,
    )


def paused(items: Sequence[Node], outer: list[Region]) -> Paused | None:
    """None where there is no `yield`, or one that not all branches reach."""
    for i, item in enumerate(items):
        before, after = list(items[:i]), list(items[i + 1 :])
        if isinstance(item, Event) and item.kind == "yield":
            return Paused(before, [r for r in item.regions if r not in outer], after, item.value)
        if isinstance(item, Block) and (found := paused(item.body, outer)) is not None:
            first, last = replace(item, body=found.before), replace(item, body=found.after)
            return Paused([*before, first], found.regions, [last, *after], found.value)
        if isinstance(item, If):
            one, two = paused(item.then, outer), paused(item.other, outer)
            if one is not None and two is not None:
                test, node = item.test, item.node
                regions = [*under(test, one.regions), *under(negation(test), two.regions)]
                return Paused(
                    [*before, If(test, one.before, two.before, node)],
                    regions,
                    [If(test, one.after, two.after, node), *after],
                    one.value or two.value,
                )
            if one is not None or two is not None:
                return None
    return None


def under(test: Formula, regions: list[Region]) -> list[Region]:
    return [replace(r, when=joined("and", [test, r.when])) for r in regions]


def enter_object(engine: Engine, value: Value, at: ast.AST) -> Value | None:
    """What the __enter__ of an object of the project returns; None where there is none."""
    found = value.method("__enter__")
    return None if found is None else engine.enter(*found, [], {}, value, at)


def leave(engine: Engine, value: Value, at: ast.AST) -> None:
    """What happens when a block is left."""
    for when, one in value.choice or ((None, value),):
        after = list(one.after) if one.kind in ("context", "stack") else []
        if when is None:
            engine.out += after
        elif after:
            engine.out.append(If(when, after, []))
    if (found := value.method("__exit__")) is not None:
        engine.enter(*found, [], {}, value, at)
