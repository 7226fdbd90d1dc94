"""A tree of events replayed once, under conditions that are given a truth."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from gradlab.audit.knowledge.losses import sync_atom
from gradlab.audit.trace.conditions import Atom, holds, literals, negation
from gradlab.audit.trace.events import Block, Event, If, Jump, Loop, Region, events, walk


@dataclass(eq=False)
class Step:
    """An event in iteration k, with what had to hold for it to happen and the regions that it is inside."""

    event: Event
    k: int
    turn: int
    guards: frozenset[tuple[str, bool]]
    active: tuple[Region, ...]

    @property
    def kind(self) -> str:
        return self.event.kind

    def inside(self, word: str) -> Region | None:
        return next((region for region in self.active if region.kind == word), None)


def flipped(values: dict[str, bool], atom: Atom | None, value: bool) -> Callable[[Atom], bool]:
    return lambda other: value if other == atom else values.get(other.key, False)


def cases(flags: list[Atom], limit: int) -> Iterator[dict[str, bool]]:
    """All combinations of some flags; of more than can be tried, all true, all false and each alone."""
    keys = [a.key for a in flags]
    if len(keys) <= limit:
        found = [dict(zip(keys, values)) for values in itertools.product((True, False), repeat=len(keys))]
    else:
        found = [dict.fromkeys(keys, base) for base in (True, False)]
        found += [{**values, key: not values[key]} for values in found for key in keys]
    said = {tuple(sorted(once(values, flags).items())): None for values in found}
    yield from (dict(items) for items in said)


def once(values: dict[str, bool], flags: list[Atom]) -> dict[str, bool]:
    """The first that holds of those that compare one subject with different constants, and not the others."""
    held: set[str] = set()
    for atom in flags:
        if atom.subject and values[atom.key]:
            values = {**values, atom.key: atom.subject not in held}
            held.add(atom.subject)
    return values


def follow(items: list, truth: Callable[[Atom], bool], k: int, turn: int, guards: frozenset, out: list[Step]) -> str:
    """Append what happens; returns how it ended: "" or the word of a jump."""
    for item in items:
        if isinstance(item, Event):
            active = tuple(r for r in item.regions if holds(r.when, truth))
            accumulate = next((r for r in active if r.kind == "accumulate"), None)
            mine = guards
            if accumulate is not None and item.kind in ("step", "zero", "schedule") and not unprepared(item):
                owner = accumulate.data.get("of")
                if owner is not None:
                    atom = sync_atom(owner)
                    if not truth(atom):
                        continue
                    mine = guards | {(atom.key, True)}
            out.append(Step(item, k, turn, mine, active))
        elif isinstance(item, Jump):
            return item.kind
        elif isinstance(item, If):
            taken = holds(item.test, truth)
            known = frozenset(literals(item.test if taken else negation(item.test)))
            count = len(out)
            status = follow(item.then if taken else item.other, truth, k, turn, guards | known, out)
            if len(out) > count and (both := shared(item)):  # what both branches do is not up to the test
                for step in out[count:]:
                    if id(step.event) in both:
                        step.guards = step.guards - (known - guards)
            if status:
                return status
            if leaving(item)[1 if taken else 0]:
                guards = guards | known
        elif isinstance(item, Loop):
            for again in range(1 if item.once else 2):
                status = follow(item.body, truth, k, again, guards, out)
                if status == "break":
                    break
                if status in ("return", "raise"):
                    return status
        elif isinstance(item, Block):
            status = follow(item.body, truth, k, turn, guards, out)
            if status == "raise":
                return status
    return ""


def unprepared(item: Event) -> bool:
    """A schedule made in this text that Accelerate was not given: nothing holds it back inside a window."""
    value = item.value
    if item.kind != "schedule" or value is None or value.data.get("call") is None or "choice" in value.data:
        return False
    optimizer = value.data.get("optimizer")
    return not value.data.get("prepared") and optimizer is not None and bool(optimizer.data.get("prepared"))


def leaving(item: If) -> tuple[bool, bool]:
    """Whether the one branch, and the other, passes over what follows; what ends the loop is about no turn of it."""
    if item.jumps is None:
        jumps = [[part.kind for part in walk(side) if isinstance(part, Jump)] for side in (item.then, item.other)]
        sides = [any(kind not in ("break", "raise") for kind in kinds) for kinds in jumps]
        item.jumps = (sides[0], sides[1])
    return item.jumps


def pruned(items: list, kinds: tuple[str, ...] = ()) -> list:
    """The tree without branches, loops and calls in which nothing happens; with `kinds`, nothing of these."""
    kept: list = []
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
    """The steps and zeros of a branch that have their like, for the same optimizer or model, in the other one."""
    if item.both is None:
        sides = [
            {(e.kind, id(e.value)): id(e) for e in events(side) if e.kind in ("step", "zero") and e.value is not None}
            for side in (item.then, item.other)
        ]
        item.both = {side[key] for side in sides for key in sides[0].keys() & sides[1].keys()}
    return item.both
