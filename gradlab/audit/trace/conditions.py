"""Conditions as formulas over atoms. An atom is what the text does not decide: a flag, a comparison, a period."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Formula = tuple[Any, ...]  # ("true",) ("false",) ("atom", Atom) ("not", f) ("and", [f]) ("or", [f])
TRUE: Formula = ("true",)
FALSE: Formula = ("false",)
WINDOW = 3
"""Micro-batches of a window when a loop is replayed: a period of unknown length is taken to be this long."""


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
    """Whether some truth of their atoms fulfils two conditions."""
    both = joined("and", [one, two])
    keys = list(dict.fromkeys(atom.key for atom in atoms(both)))[:8]
    found = (dict(zip(keys, values)) for values in itertools.product((True, False), repeat=len(keys)))
    return any(holds(both, lambda atom, truth=truth: truth.get(atom.key, True)) for truth in found)  # type: ignore[misc]


def atoms(formula: Formula) -> list[Atom]:
    if formula[0] == "atom":
        return [formula[1]]
    if formula[0] == "not":
        return atoms(formula[1])
    if formula[0] in ("and", "or"):
        return [atom for part in formula[1] for atom in atoms(part)]
    return []


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
