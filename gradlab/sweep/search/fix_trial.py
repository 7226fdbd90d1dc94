"""What a fix tries, and how it went: a plan, its changes, and their trials."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gradlab.base.command import key

ERROR = "error"
"""Stands for the verdict of a trial that could not be run."""


@dataclass(frozen=True)
class Number:
    """The number in a change that can be made smaller."""

    field: str
    own: float
    """The failed run's; infinite where it had no bound."""


@dataclass(frozen=True)
class Change:
    """What is changed: one candidate, or several."""

    name: str
    overrides: tuple[str, ...]
    why: str
    number: Number | None = None
    parts: tuple[Change, ...] = ()

    def at(self, value: float) -> Change:
        """The change with another value of its number."""
        assert self.number is not None
        name = self.number.field
        made = tuple(f"{name}={value:.3g}" if key(o) == name else o for o in self.overrides)
        return replace(self, overrides=made)

    @property
    def value(self) -> float:
        found = [o.partition("=")[2] for o in self.overrides if self.number and key(o) == self.number.field]
        return float(found[0]) if found else math.nan


@dataclass
class Plan:
    """A failed run, and what may be tried on it."""

    verdict: str
    overrides: tuple[str, ...]
    """The overrides of the failed run."""
    seed: int
    planned: int
    """Updates of a run that comes to its end."""
    died_at: int | None
    """The update at which it ended, where that was before its end."""
    changes: list[Change]
    seeds: int = 2
    """Further seeds under which a cure is confirmed."""
    end: float | None = None
    """Loss of its last evaluation, where it came to its end and has not learnt."""
    budget: float = 4.0
    """Most that finding a cure may cost, in runs of full length; shrinking and confirming come on top."""


@dataclass
class Trial:
    """A job, and how it ended."""

    purpose: str
    """full, part, shrink, seed or without."""
    change: Change | None
    """None: the failed run itself, under another seed."""
    seed: int
    updates: int | None
    """Updates after which it is cut short; None: it runs to its end."""
    job: str = ""
    verdict: str = ""
    cured: bool = False
    unstable: bool = False
    ill: bool = True
    learns: bool = False
    attempts: int = 0
    why: str = ""
    but: str = ""
    """Why it is no cure although its verdict is healthy."""
    follow: Change | None = None
    """The change to try next, where a trial leaves samples out and fails because of others: these are left out, too."""

    @property
    def said(self) -> str:
        """The verdict in words, with what speaks against a cure."""
        if self.but:
            return f"{self.verdict}, but {self.but}"
        return self.verdict + ", though it learns" * (self.learns and not self.cured)


def merit(trial: Trial) -> tuple[bool, bool, bool, bool]:
    """Sorts trials, the best first; equal ones stay in the order of the evidence."""
    return trial.unstable, not trial.cured, trial.ill, not trial.learns


def names(overrides: Sequence[str]) -> list[str]:
    return [key(o) for o in overrides]


def groups(change: Change) -> set[str]:
    return {key(o).split(".")[0] for o in change.overrides}


def both(a: Change, b: Change) -> Change:
    return Change(f"{a.name} and {b.name}", (*a.overrides, *b.overrides), f"{a.why}; {b.why}", None, (a, b))
