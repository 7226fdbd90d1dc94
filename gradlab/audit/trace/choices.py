"""One of several values, each with the condition under which it is the one."""

from __future__ import annotations

from collections.abc import Sequence

from gradlab.audit.trace.conditions import FALSE, TRUE, Formula, exclude, joined, negation
from gradlab.audit.trace.event_tree import If, Jump, Node, walk
from gradlab.audit.trace.truth import truthy
from gradlab.audit.trace.values import Value

TELLING = {"instance": 1, "number": 2, "unknown": 3, "none": 4}
"""Kinds that are not the kind of a choice where another alternative has one that tells more, the last one least."""


def choice(alternatives: list[tuple[Formula, Value]]) -> Value:
    """One of several values; the value itself where all are the same."""
    flat = distinct(alternatives)
    first = flat[0][1]
    if all(v is first for _, v in flat):
        return first
    if (processes := number_of_processes([v for _, v in flat])) is not None:
        return processes
    kinds = [v.kind for _, v in flat]
    first = min((v for _, v in flat), key=lambda v: (TELLING.get(v.kind, 0), v.kind != "ddp"))
    if all(v.kind == "bool" or (v.kind == "number" and isinstance(v.value, bool)) for _, v in flat):
        parts = [joined("and", [when, truthy(v, v.name)]) for when, v in flat]
        return Value("bool", first.name, formula=joined("or", parts))
    divisors = [[f for f in v.factors if f.sign == "/"] for _, v in flat if v.kind == "tensor"]
    made = first.derived(first.kind, first.name, choice=tuple(flat), birth=max(v.birth for _, v in flat))
    if first.kind == "optimizer":
        made.trained = tuple(dict.fromkeys(model for _, v in flat for model in v.trained))
    made.roots = first.roots.union(*(v.roots for _, v in flat))
    ranges = {v.range for _, v in flat if v.kind != "none"}  # with None nothing can be computed
    made.range = first.range if ranges == {first.range} else "joint" if ranges == {"share", "joint"} else ""
    if any(f != divisors[0] for f in divisors):
        made.perhaps_divided = True
    if "none" in kinds or "unknown" in kinds or len({v.name for _, v in flat}) == 1:
        made.attributes = first.attributes
    return made


def number_of_processes(values: Sequence[Value]) -> Value | None:
    """The number of processes, where that is what values are, or 1 where there is no group of them."""
    sizes = [v for v in values if v.of_processes]
    return sizes[0] if sizes and all(v.of_processes or v.value == 1 for v in values) else None


def distinct(alternatives: list[tuple[Formula, Value]]) -> list[tuple[Formula, Value]]:
    """Each value once, choices replaced by their alternatives, so that nested branches do not multiply them.

    Of many the third stands for those between it and the last three, so that there is one under every condition.
    """
    nested = [(when, inner, v) for when, value in alternatives for inner, v in value.choice or ((TRUE, value),)]
    wrapped = any(v.kind == "ddp" for _, _, v in nested)  # `net.module if isinstance(net, DDP) else net`
    possible = [one for one in nested if not (wrapped and exclude(one[0], one[1]))] or nested
    found: dict[int, tuple[Formula, Value]] = {}
    for when, inner, v in possible:
        test = joined("and", [when, inner])
        known = found.get(id(v))
        found[id(v)] = (test if known is None else joined("or", [known[0], test]), v)
    flat = list(found.values())
    if len(flat) <= 6:
        return flat
    return [*flat[:2], (joined("or", [test for test, _ in flat[2:-3]]), flat[2][1]), *flat[-3:]]


def either(test: Formula, one: Value, two: Value | None) -> Value:
    """What a name is bound to after two branches."""
    if two is None or one is two:
        return one
    if test in (TRUE, FALSE):
        taken, other = (one, two) if test == TRUE else (two, one)
        if other.kind == "ddp":
            other.root().wrapped = False  # by what is never made
        return taken
    return choice([(test, one), (negation(test), two)])


def returned(items: Sequence[Node]) -> list[tuple[Formula, Value]] | None:
    """What a function's body returns outside its loops, each with its condition; None where its end may be reached."""
    found: list[tuple[Formula, Value]] = []
    left = outcomes(items, TRUE, found)
    return found if left == FALSE and found else None


def outcomes(items: Sequence[Node], when: Formula, found: list[tuple[Formula, Value]]) -> Formula:
    """Add what is returned; the result is the condition under which the end of the items is reached."""
    for item in items:
        if when == FALSE:
            break
        if isinstance(item, Jump):
            if item.kind == "return" and item.value is not None:
                found.append((when, item.value))
            return FALSE
        if isinstance(item, If) and any(isinstance(part, Jump) for part in walk([item])):
            sides = [(item.test, item.then), (negation(item.test), item.other)]
            ends = [outcomes(side, joined("and", [when, test]), found) for test, side in sides if test != FALSE]
            when = joined("or", ends)
    return when
