"""A run's loss in three numbers, which its diagnosis, tables and pages share. Numbers in, numbers out.

A batch's loss is noisy, so a run is described by levels: medians of 20 successive losses, or of a fifth of all losses
in a run of fewer than 100 updates. A non-finite loss counts as infinite.

    initial  the first loss that is finite
    final    the level of the last losses: infinite where half of them are not finite
    best     the lowest level of consecutive windows, or the final one

Diagnosis rules use their own windows (`diagnosis.window`) of finite losses, but report these numbers. `results.csv` and
maps count the final loss of a failed run as infinite: it leaves no usable model.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Sequence

MOST = 20
"""Losses in a window at most."""
PART = 5
"""Windows in a short run."""


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
    """The medians of consecutive windows; an incomplete one at the end is left out."""
    return [statistics.median(losses[i : i + size]) for i in range(0, len(losses) - size + 1, size)]
