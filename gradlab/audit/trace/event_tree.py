"""What a program does to gradients, as a tree: events in order, under conditions, in loops and in calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gradlab.audit.trace.conditions import Formula, negation
from gradlab.audit.trace.values import Event, Value


@dataclass(eq=False)
class Jump:
    kind: str  # continue, break, return, raise
    node: ast.AST
    value: Value | None = None  # that is returned


@dataclass(eq=False)
class If:
    test: Formula
    then: list[Node]
    other: list[Node]
    node: ast.AST | None = None
    both: set[int] | None = None  # ids of the events that both branches have; a cache
    jumps: tuple[bool, bool] | None = None
    known: dict[bool, frozenset[tuple[str, bool]]] | None = None  # what each truth of the test implies; a cache


@dataclass(eq=False)
class Loop:
    node: ast.For | ast.While | ast.AsyncFor
    path: str
    body: list[Node]
    birth: int
    over: Value | None = None
    once: bool = False  # a loop over parameters or optimizers: no iteration of the training


@dataclass(eq=False)
class Block:
    """A call that was followed: `return` ends it, not the loop around it."""

    node: ast.AST
    path: str
    body: list[Node]
    name: str = ""


Node = Event | Jump | If | Loop | Block


def either_of(tests: list[Formula], items: list[list[Node]]) -> list[Node]:
    """What happens under each of several conditions; one branch of the other where one is the other's negation."""
    if len(tests) == 2 and tests[1] == negation(tests[0]):
        return [If(tests[0], items[0], items[1])]
    return [If(test, inside, []) for test, inside in zip(tests, items)]


def walk(items: Sequence[Node]) -> Iterator[Node]:
    """Every node, those inside others included."""
    for item in items:
        yield item
        if isinstance(item, If):
            yield from walk(item.then)
            yield from walk(item.other)
        elif isinstance(item, (Loop, Block)):
            yield from walk(item.body)


def events(items: Sequence[Node]) -> list[Event]:
    return [item for item in walk(items) if isinstance(item, Event)]
