"""A run's loss in three numbers, the same in its diagnosis, in every table and on every page. Numbers in, numbers out.

A batch's loss is noisy, so what is told of a run is a level: the median of successive losses, of 20, and of a run of
fewer than 100 updates of a fifth of them. A loss that is not finite counts as infinite.

    initial  the first loss that is finite
    final    the level of the last losses: infinite where half of them are lost
    best     the lowest level of windows side by side, or the final one

Rules of the diagnosis have windows of their own (`diagnosis.window`), over finite losses; what they quote are these.
`results.csv` and maps count the final loss of a run that failed as infinite: there is no model to go on with.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Sequence

MOST = 20
"""Losses of a window at most."""
PART = 5
"""Windows that a short run has."""


class Levels:
    """The three numbers of a series of any length, of which it keeps the latest 100; NaN of none."""

    def __init__(self, losses: Iterable[float] = ()) -> None:
        self.latest: deque[float] = deque(maxlen=PART * MOST)
        self.count = 0
        self.initial, self.lowest = math.nan, math.inf
        for loss in losses:
            self.add(loss)

    def add(self, loss: float) -> None:
        finite = math.isfinite(loss)
        if finite and self.initial != self.initial:
            self.initial = loss
        self.latest.append(loss if finite else math.inf)
        self.count += 1
        if self.count % (PART * MOST) == 0:
            self.lowest = min(self.lowest, *levels(list(self.latest), MOST))

    @property
    def window(self) -> int:
        return max(1, min(MOST, self.count // PART))

    @property
    def final(self) -> float:
        return statistics.median(list(self.latest)[-self.window :]) if self.count else math.nan

    @property
    def best(self) -> float:
        if not self.count:
            return math.nan
        since = self.count % (PART * MOST)
        return min(self.lowest, *levels(list(self.latest)[len(self.latest) - since :], self.window), self.final)


def levels(losses: Sequence[float], size: int) -> list[float]:
    """The medians of windows side by side; what is left over at the end is in none."""
    return [statistics.median(losses[i : i + size]) for i in range(0, len(losses) - size + 1, size)]
