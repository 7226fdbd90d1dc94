"""Bounded samples and means of a series of any length."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Sequence


class Samples:
    """A bounded sample of a series of any length: every stride-th value, where the stride doubles when it is full.

    Of most runs it has all: a median that is told is that of the run.
    """

    def __init__(self, size: int = 2048) -> None:
        self.size, self.stride, self.count = size, 1, 0
        self.values: list[float] = []
        self.largest = -math.inf
        """Of all values."""

    def add(self, value: float) -> None:
        if self.count % self.stride == 0:
            self.values.append(value)
            if len(self.values) == 2 * self.size:
                self.values, self.stride = self.values[::2], 2 * self.stride
        self.count += 1
        self.largest = max(self.largest, value)

    @property
    def median(self) -> float:
        return statistics.median(self.values) if self.values else math.nan


class Blocks:
    """The means of successive equal blocks of a series of any length; their size doubles when there are too many."""

    def __init__(self, most: int = 64) -> None:
        self.most, self.size, self.count, self.sum = most, 1, 0, 0.0
        self.means: list[float] = []

    def add(self, value: float) -> None:
        self.count, self.sum = self.count + 1, self.sum + value
        if self.count == self.size:
            self.means.append(self.sum / self.size)
            self.count, self.sum = 0, 0.0
            if len(self.means) == self.most:
                self.means = [(a + b) / 2 for a, b in zip(self.means[::2], self.means[1::2], strict=True)]
                self.size *= 2

    def parts(self, number: int) -> list[float]:
        """The means of so many equal parts; empty of fewer blocks. Blocks that are left over are the first ones."""
        size = len(self.means) // number
        late = self.means[len(self.means) - number * size :]
        return [statistics.fmean(late[i * size : (i + 1) * size]) for i in range(number)] if size else []


class Recent:
    """The latest finite values of a series, also sorted, for a cheap median."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.values: deque[float] = deque()
        self.ordered: list[float] = []

    def add(self, value: float) -> None:
        if len(self.values) == self.size:
            del self.ordered[bisect_left(self.ordered, self.values.popleft())]
        self.values.append(value)
        insort(self.ordered, value)

    def without(self, value: float) -> list[float]:
        """Sorted, without the ones equal to a value."""
        return self.ordered[: bisect_left(self.ordered, value)] + self.ordered[bisect_right(self.ordered, value) :]

    @property
    def median(self) -> float:
        return median(self.ordered)

    @property
    def spread(self) -> float:
        """Robust standard deviation."""
        usual = self.median
        return 1.4826 * statistics.median(abs(v - usual) for v in self.values)


def median(ordered: list[float]) -> float:
    """The median of sorted values; NaN of none."""
    half = len(ordered) // 2
    if not ordered:
        return math.nan
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def without_spike(losses: Sequence[float]) -> list[float]:
    """Sorted; the largest one counts as the second largest."""
    values = sorted(losses)
    return [*values[:-1], values[-2]] if len(values) > 2 else values
