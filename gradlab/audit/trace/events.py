"""What a program does to gradients: events in order, under conditions, in loops, inside context managers."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

from gradlab.audit.trace.conditions import Formula
from gradlab.audit.trace.values import Value


@dataclass(eq=False)
class Region:
    """A `with` block: autocast, no_sync, accumulate, scale_loss. `when` tells in which iterations it holds."""

    kind: str
    when: Formula
    node: ast.AST
    value: Value | None = None
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class Event:
    """`kind`: backward, step, zero, clip, unscale, update, schedule, forward, passed, scale, reduce, keep, taken,
    opaque."""

    kind: str
    node: ast.AST
    path: str
    value: Value | None = None
    regions: tuple[Region, ...] = ()
    data: dict[str, Any] = field(default_factory=dict)
    guards: tuple[Formula, ...] = ()
    frames: tuple = ()  # the calls that it happens in, each with the module of its text


@dataclass(eq=False)
class Jump:
    kind: str  # continue, break, return, raise
    node: ast.AST


@dataclass(eq=False)
class If:
    test: Formula
    then: list
    other: list
    node: ast.AST | None = None
    both: set[int] | None = None  # what happens in both branches, once it was looked for
    jumps: tuple[bool, bool] | None = None


@dataclass(eq=False)
class Loop:
    node: ast.AST
    path: str
    body: list
    birth: int
    over: Value | None = None
    once: bool = False  # a loop over parameters or optimizers: no iteration of the training


@dataclass(eq=False)
class Block:
    """A call that was followed: `return` ends it, not the loop around it."""

    node: ast.AST
    path: str
    body: list
    name: str = ""


def walk(items: list):
    """Every node below, events included."""
    for item in items:
        yield item
        if isinstance(item, If):
            yield from walk(item.then)
            yield from walk(item.other)
        elif isinstance(item, (Loop, Block)):
            yield from walk(item.body)


def events(items: list) -> list[Event]:
    return [item for item in walk(items) if isinstance(item, Event)]
