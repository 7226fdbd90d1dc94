"""How a run ends."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradlab.update.precision import ScaleTooSmall


class NonFiniteGradient(RuntimeError):
    """A gradient that is not finite, in a precision that does not skip."""


class Hopeless(RuntimeError):
    """A loss that has been far above its first for so long that the rest of the run is not worth its time."""


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
    """Its epoch."""
    scale_too_small: bool = False
    """Whether it was the loss scale that ended the run."""
    eval: list[dict[str, float]] = field(default_factory=list)
    """One entry an evaluation: epoch, eval/loss and, where there are classes, eval/accuracy."""
    seconds: float = 0.0
