"""A search: a sweep that decides round by round which jobs to run next. Needs no Hydra: overrides in, results out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from gradlab.sweep.grid.axes import Point
from gradlab.sweep.search.judge import FinishedJob

RunRound = Callable[[list[Point]], list[FinishedJob]]
"""Runs a job for each list of overrides, in parallel as far as the launcher can, and returns the result of each."""


class Interrupted(Exception):
    """Ctrl-C: what is known so far is written, and the sweep ends."""


class Search(Protocol):
    """Ask-and-tell: asks for jobs until it knows enough. Jobs depend on the results alone: it can be repeated."""

    def ask(self) -> list[Point]:
        """Jobs of the next round; none when it is done."""

    def tell(self, seen: Sequence[FinishedJob]) -> None:
        """The results of the jobs asked for last, or of the first of them."""

    def progress(self) -> str:
        """Progress in a few words."""


def conduct(
    search: Search,
    run: RunRound,
    max_runs: int | None,
    say: Callable[[str], None],
    check: Callable[[list[Point]], None] = lambda jobs: None,
) -> str | None:
    """Round after round until the search is done; returns why it ended early, if it did.

    check: raises if jobs of the first round cannot be run, before anything is printed.
    """
    made = number = 0
    while jobs := search.ask():
        number += 1
        room = len(jobs) if max_runs is None else max_runs - made
        if room <= 0:
            return f"max_runs={max_runs} was reached"
        jobs = jobs[:room]
        if number == 1:
            check(jobs)
        say(f"round {number}: {len(jobs)} run{'s' * (len(jobs) != 1)}, after {made}; {search.progress()}")
        try:
            search.tell(run(jobs))
        except Interrupted:
            return "it was interrupted"
        made += len(jobs)
    return None
