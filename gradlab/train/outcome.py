"""How a run ends."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from gradlab.update.precision import ScaleTooSmall


class NonFiniteGradient(RuntimeError):
    """A gradient that is not finite, in a precision that does not skip."""


class Hopeless(RuntimeError):
    """A loss that has been far above its first for so long that the rest of the run is not worth its time."""


class Patience:
    """Gives up a run whose loss stays far above its first one."""

    def __init__(self, limit: float | None, updates: int) -> None:
        """limit: times the first loss, above which an update is hopeless; updates: how many in a row end the run."""
        self.limit, self.updates = limit, updates
        self.first_loss = math.nan
        self.num_hopeless = 0
        """Hopeless updates in a row so far."""

    def follow(self, loss: float, where: str) -> None:
        """Raise `Hopeless` where the loss has been too high for too long."""
        if self.limit is None:
            return
        if math.isnan(self.first_loss):
            self.first_loss = loss
        # no factor of a negative loss means anything
        fine = loss <= self.limit * self.first_loss or self.first_loss <= 0
        self.num_hopeless = 0 if fine else self.num_hopeless + 1
        if self.num_hopeless >= self.updates:
            over = f"the loss was over {self.limit:g} times its first, {self.first_loss:.3g}"
            raise Hopeless(f"given up: for {self.num_hopeless} updates {over} ({where})")


FAILURES = (ScaleTooSmall, NonFiniteGradient, Hopeless)
"""What ends a run before its end."""


@dataclass
class Outcome:
    """How a run ended."""

    status: str = "completed"
    """completed, failed, given_up (as hopeless) or interrupted."""
    error: str | None = None
    attempts: int = 0
    """Updates tried, skipped ones included."""
    applied: int = 0
    epoch: int = 0
    """Epochs begun."""
    epochs_completed: int = 0
    first_failed_attempt: int | None = None
    """The first update of the last streak of failures."""
    first_failed_epoch: int | None = None
    """The epoch of that update."""
    scale_too_small: bool = False
    """Whether it was the loss scale that ended the run."""
    eval: list[dict[str, float]] = field(default_factory=list)
    """One entry an evaluation: epoch, eval/loss and, where there are classes, eval/accuracy."""
    seconds: float = 0.0
