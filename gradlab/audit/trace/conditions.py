"""Conditions as formulas over atoms. An atom is what the text does not decide: a flag, a comparison, a period."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Formula = tuple[Any, ...]  # ("true",) ("false",) ("atom", Atom) ("not", f) ("and", [f]) ("or", [f])
TRUE: Formula = ("true",)
FALSE: Formula = ("false",)
WINDOW = 3
"""Micro-batches of a window when a loop is replayed: a period of unknown length is taken to be this long."""

MANY = 24
"""Atoms of a condition that is too large to be tried with every truth of them."""


@dataclass(frozen=True)
class Atom:
    """A condition of unknown truth. `at(k)` is its truth in iteration k where arithmetic decides it.

    birth: that of the youngest value in it; an atom older than a loop is the same in every iteration of it.
    """

    key: str
    birth: int = 0
    kind: str = "flag"  # flag, period, last, finite, sync, raised
    period: str = ""
    at: Callable[[int], object] | None = None
    subject: str = ""
    """What is compared with a constant: of the atoms with one subject at most one holds."""
    text: str = ""
    """Of a check for finite numbers: the source text."""
    once: bool = False
    """A loop's own index against a bound: it changes only once in the loop, so it ends no window."""
    ends: bool = False
    """Of a loop that counts to a number: it holds in the last iteration alone."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Atom) and other.key == self.key

    def __hash__(self) -> int:
        return hash(self.key)


SEVERAL: Formula = ("atom", Atom("several processes"))
"""There are several processes, however a program asks: a group of one would do no harm."""


def sync_atom(number: int) -> Atom:
    """Whether this iteration synchronises gradients, by the accelerator with that number."""
    return Atom(f"sync_gradients#{number}", 1 << 60, "sync")


def negation(formula: Formula) -> Formula:
    if formula == TRUE:
        return FALSE
    if formula == FALSE:
        return TRUE
    inner: Formula = formula[1]
    return inner if formula[0] == "not" else ("not", formula)


def joined(word: str, parts: list[Formula]) -> Formula:
    """The conjunction ("and") or disjunction ("or") of formulas, simplified."""
    neutral, absorbing = (TRUE, FALSE) if word == "and" else (FALSE, TRUE)
    parts = [part for part in parts if part != neutral]
    if absorbing in parts:
        return absorbing
    if not parts:
        return neutral
    return parts[0] if len(parts) == 1 else (word, parts)


def holds(formula: Formula, truth: Callable[[Atom], bool]) -> bool:
    word = formula[0]
    if word in ("true", "false"):
        return bool(word == "true")
    if word == "atom":
        return truth(formula[1])
    if word == "not":
        return not holds(formula[1], truth)
    parts = (holds(part, truth) for part in formula[1])
    return all(parts) if word == "and" else any(parts)


def may_both_hold(one: Formula, two: Formula) -> bool:
    """Whether some truth of their atoms fulfils two conditions; of many atoms the first ones are tried."""
    both = joined("and", [one, two])
    subjects = {atom.key: atom.subject for atom in leaves(both)}
    keys = [*subjects][:8]
    found = (dict(zip(keys, values)) for values in itertools.product((True, False), repeat=len(keys)))
    found = (truth for truth in found if not several_of_one(truth, subjects))
    return any(holds(both, lambda atom, truth=truth: truth.get(atom.key, True)) for truth in found)  # type: ignore[misc]


def exclude(one: Formula, two: Formula) -> bool:
    """Whether no truth of their atoms fulfils two conditions; of large ones some does, perhaps."""
    found = list(itertools.islice(leaves(joined("and", [one, two])), MANY))
    return len(found) < MANY and len({atom.key for atom in found}) <= 8 and not may_both_hold(one, two)


def leaves(formula: Formula) -> Iterator[Atom]:
    """The atoms of a formula, one after the other."""
    if formula[0] == "atom":
        yield formula[1]
    for part in [formula[1]] if formula[0] == "not" else formula[1] if formula[0] in ("and", "or") else ():
        yield from leaves(part)


def several_of_one(truth: dict[str, bool], subjects: dict[str, str]) -> bool:
    """Whether comparisons of one subject with several constants hold."""
    held = [subjects[key] for key, value in truth.items() if value and subjects[key]]
    return len(held) > len({*held})


def atoms(formula: Formula) -> list[Atom]:
    return list(leaves(formula))


def literals(formula: Formula, positive: bool = True) -> list[tuple[str, bool]]:
    """What must hold for a formula to hold, as literals; a disjunction counts as one."""
    word = formula[0]
    if word == "atom":
        return [(formula[1].key, positive)]
    if word == "not":
        return literals(formula[1], not positive)
    if word == ("and" if positive else "or"):
        return [literal for part in formula[1] for literal in literals(part, positive)]
    if word in ("and", "or"):
        return [(" | ".join(sorted(a.key for a in atoms(formula))), positive)]
    return []
