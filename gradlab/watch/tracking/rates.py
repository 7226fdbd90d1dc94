"""The learning rates that an optimizer has stepped with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

GONE = 1e-3
"""Part of the highest learning rate at which nothing is trained any more."""


@dataclass
class Rates:
    """The highest of its groups in each update: the others may be frozen by a rate of 0."""

    first: float = 0.0
    """That of its first group in the first update."""
    peak: float = 0.0
    """The highest so far."""
    peaks: dict[int, float] = field(default_factory=dict)
    """id of a group -> its highest so far."""
    before: tuple[list[int], list[Any]] | None = None
    """ids of the groups and their rates in the update before."""
    latest: float = 0.0
    since: int = 0
    """The update from which on it is that."""
    changes: int = 0
    """Times that it was another one than in the update before."""
    last_alive: int = 0
    """The latest update whose rate was over `GONE` of the peak."""

    def note(self, optimizer: Any, update: int) -> None:
        """After a step. update: how many there were before."""
        rates = [group.get("lr", 0.0) for group in optimizer.param_groups]
        if True in [isinstance(each, Tensor) for each in rates]:
            return  # reading it may wait for a device
        groups = [*map(id, optimizer.param_groups)]
        if (groups, rates) == self.before:
            self.last_alive = update if self.latest > GONE * self.peak else self.last_alive
            return
        self.before = groups, rates
        for group, each in zip(groups, rates, strict=True):
            self.peaks[group] = max(each, self.peaks.get(group, 0.0))
        rate, self.first = max(rates), self.first or rates[0]
        if rate != self.latest:
            self.changes += update > 0
            self.latest, self.since = rate, update
        if rate > GONE * self.peak:
            self.last_alive = update
            self.peak = max(self.peak, rate)

    def is_always_zero(self, group: dict[str, Any]) -> bool:
        rate = group.get("lr", 1.0)
        return not isinstance(rate, Tensor) and rate == 0 and not self.peaks.get(id(group))
