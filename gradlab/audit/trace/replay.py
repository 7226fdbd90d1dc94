"""A tree of events replayed once, with a truth given to each condition."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from gradlab.audit.trace.conditions import Atom, holds, literals, negation, sync_atom
from gradlab.audit.trace.event_tree import Block, If, Jump, Loop, Node, events, walk
from gradlab.audit.trace.values import Event, Region

ALONE = 40
"""How many flags are tried alone where there are too many for all combinations."""
Guards = frozenset[tuple[str, bool]]
"""Conditions, each with the truth that it had."""


@dataclass(eq=False)
class Occurrence:
    """An event in iteration k, with the conditions that it depends on and the regions that are active around it.

    repeat: in which of its two replayed iterations an inner loop is.
    """

    event: Event
    k: int
    repeat: int
    guards: Guards
    active: tuple[Region, ...]

    @property
    def kind(self) -> str:
        return self.event.kind

    def inside(self, word: str) -> Region | None:
        return next((region for region in self.active if region.kind == word), None)


def flipped(values: dict[str, bool], atom: Atom | None, value: bool) -> Callable[[Atom], bool]:
    """The truth of every atom, one of them set to `value`; atoms that are not among `values` are false."""
    return lambda other: value if other == atom else values.get(other.key, False)


def cases(flags: list[Atom], limit: int) -> Iterator[dict[str, bool]]:
    """All combinations of some flags; of more than `limit`: all true, all false, and each of the first ones alone."""
    keys = [a.key for a in flags]
    if len(keys) <= limit:
        found = [dict(zip(keys, values)) for values in itertools.product((True, False), repeat=len(keys))]
    else:
        found = [dict.fromkeys(keys, base) for base in (True, False)]
        found += [{**values, key: not values[key]} for values in found for key in keys[:ALONE]]
    distinct = {tuple(sorted(exclusive(values, flags).items())): None for values in found}
    yield from (dict(items) for items in distinct)


def exclusive(values: dict[str, bool], flags: list[Atom]) -> dict[str, bool]:
    """Of the flags that compare one subject with different constants only the first that holds."""
    met: set[str] = set()
    for atom in flags:
        if atom.subject and values[atom.key]:
            values = {**values, atom.key: atom.subject not in met}
            met.add(atom.subject)
    return values


def follow(
    items: Sequence[Node], truth: Callable[[Atom], bool], k: int, repeat: int, guards: Guards, out: list[Occurrence]
) -> str:
    """Append what happens to `out`; returns how it ended: "" or the kind of a jump."""
    for item in items:
        if isinstance(item, Event):
            happened = occurrence(item, truth, k, repeat, guards)
            if happened is not None:
                out.append(happened)
        elif isinstance(item, Jump):
            return item.kind
        elif isinstance(item, If):
            status, guards = follow_branch(item, truth, k, repeat, guards, out)
            if status:
                return status
        elif isinstance(item, Loop):
            for again in range(1 if item.once else 2):
                status = follow(item.body, truth, k, again, guards, out)
                if status == "break":
                    break
                if status in ("return", "raise"):
                    return status
        elif follow(item.body, truth, k, repeat, guards, out) == "raise":
            return "raise"
    return ""


def occurrence(event: Event, truth: Callable[[Atom], bool], k: int, repeat: int, guards: Guards) -> Occurrence | None:
    """None where Accelerate passes over the event, because the iteration does not end a window."""
    active = tuple(r for r in event.regions if holds(r.when, truth))
    accumulate = next((r for r in active if r.kind == "accumulate"), None)
    owner = accumulate.accelerator if accumulate is not None else None
    if owner is not None and event.kind in ("step", "zero", "schedule") and not unprepared(event):
        atom = sync_atom(owner.number)
        if not truth(atom):
            return None
        guards = guards | {(atom.key, True)}
    return Occurrence(event, k, repeat, guards, active)


def follow_branch(
    item: If, truth: Callable[[Atom], bool], k: int, repeat: int, guards: Guards, out: list[Occurrence]
) -> tuple[str, Guards]:
    """How the branch ended, and the guards of what follows it."""
    taken = holds(item.test, truth)
    known = implied(item)[taken]
    count = len(out)
    status = follow(item.then if taken else item.other, truth, k, repeat, guards | known, out)
    if len(out) > count and (both := shared(item)):  # what both branches do does not depend on the test
        for step in out[count:]:
            if id(step.event) in both:
                step.guards = step.guards - (known - guards)
    return status, guards | known if leaving(item)[1 if taken else 0] else guards


def implied(item: If) -> dict[bool, Guards]:
    """The conditions that hold where the test of a branch does, and where it does not."""
    if item.known is None:
        item.known = {True: frozenset(literals(item.test)), False: frozenset(literals(negation(item.test)))}
    return item.known


def unprepared(event: Event) -> bool:
    """A schedule made in this text that Accelerate was not given: nothing holds it back inside a window."""
    value = event.value
    if event.kind != "schedule" or value is None or value.call is None or value.choice:
        return False
    return value.prepared is None and value.optimizer is not None and value.optimizer.prepared is not None


def leaving(item: If) -> tuple[bool, bool]:
    """Whether each branch passes over what follows in the iteration; a jump that ends the loop does not count."""
    if item.jumps is None:
        item.jumps = (passes_over(item.then), passes_over(item.other))
    return item.jumps


def passes_over(items: Sequence[Node], inner: bool = False) -> bool:
    """Whether a jump of these ends the iteration: no `return` of a call does, and no `continue` of an inner loop."""
    for item in items:
        if isinstance(item, Jump):
            found = item.kind == "return" or (item.kind == "continue" and not inner)
        elif isinstance(item, If):
            found = passes_over(item.then, inner) or passes_over(item.other, inner)
        else:
            found = isinstance(item, Loop) and passes_over(item.body, True)
        if found:
            return True
    return False


def pruned(items: Sequence[Node], kinds: tuple[str, ...] = ()) -> list[Node]:
    """The tree without branches, loops and calls in which nothing happens; with `kinds`, nothing of these."""
    kept: list[Node] = []
    for item in items:
        if isinstance(item, If):
            then, other = pruned(item.then, kinds), pruned(item.other, kinds)
            if then or other:
                kept.append(If(item.test, then, other, item.node))
        elif isinstance(item, (Loop, Block)):
            body = pruned(item.body, kinds)
            if any(isinstance(part, Event) or (isinstance(part, Jump) and part.kind == "raise") for part in walk(body)):
                kept.append(replace(item, body=body))
        elif isinstance(item, Jump) or not kinds or item.kind in kinds:
            kept.append(item)
    return kept


def shared(item: If) -> set[int]:
    """Ids of the steps and zeros of a branch that the other branch has too, of the same optimizer or model.

    One call of backward(), of a loss that may be one or the other, is in both.
    """
    if item.both is None:
        kinds = ("step", "zero", "backward")
        sides = [
            {
                (e.kind, id(e.node if e.kind == "backward" else e.value)): id(e)
                for e in events(side)
                if e.kind in kinds and e.value is not None
            }
            for side in (item.then, item.other)
        ]
        item.both = {side[key] for side in sides for key in sides[0].keys() & sides[1].keys()}
    return item.both
