"""A run that has ended, as the rules see it: measurements and how it ended; no name, no expectation, no remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradlab.diagnosis.history import History
from gradlab.diagnosis.series import median

if TYPE_CHECKING:
    from gradlab.diagnosis.inspection import Inspection
    from gradlab.diagnosis.replay.overflow import Overflow


@dataclass
class FinishedRun:
    """What the rules may read of a run that has ended."""

    history: History
    status: str = "completed"
    """completed, failed, given_up or interrupted."""
    error: str | None = None
    scale_too_small: bool = False
    """Whether the run ended because the loss scale was too small."""
    half: bool = False
    """Whether the forward pass rounds to fp16."""
    scaled: bool = False
    """Whether there is a loss scale that moves."""
    clips: bool = False
    """Whether gradients are clipped."""
    overflow: Overflow | None = None
    """The first tensor that was not finite when the failing update was run again."""
    inspection: Inspection | None = None
    """Of the model at the end."""
    constant: float | None = None
    """Loss of the best constant answer, where known: a model that is no better has learnt nothing from the inputs."""
    window: int = 20
    learning: float = 0.05
    still: float = 1e-6

    @property
    def long(self) -> bool:
        """Whether the run is long enough to judge its losses."""
        return self.history.attempts >= 2 * self.window

    def rose(self, factor: float) -> bool:
        """Whether the final loss is more than `factor` times the first, or that of the best constant answer."""
        h = self.history
        reference = max(h.loss_first, h.loss_early if self.constant is None else self.constant)
        if self.long and h.last:
            spread = 1.4826 * median(sorted(abs(v - h.loss_late) for v in h.last))
            doubt = 1.25 * spread / len(h.last) ** 0.5  # standard error of a median
            rise, least = h.loss_late - reference, (factor - 1) * abs(reference)
            every = min(h.last) - reference > least  # a growing loss has a large spread, and is above all the same
            return rise > least and (rise > 5 * doubt or every)
        latest = list(h.last)[-3:]  # too few to average: only a clear rise
        return (
            h.attempts >= 5 and not self.long and bool(latest) and min(latest) - reference > 2 * factor * abs(reference)
        )

    @property
    def dead(self) -> bool:
        """Whether its last updates were all skipped, or applied with a non-finite loss."""
        h = self.history
        return h.attempts > 0 and (not h.first or h.streak >= self.window or h.broken)

    @property
    def learns(self) -> bool:
        return self.history.improvement >= self.learning and not self.trivial

    @property
    def trivial(self) -> bool:
        """Whether a constant answer would be as good: by the evaluations, or without any by the last losses.

        A training loss of less than half of it is no coincidence: that model has learnt, if only by heart.
        """
        if self.constant is None:
            return False
        found = [v for v in self.history.evaluations if v == v] or [self.history.loss_late]
        by_heart = self.history.loss_late < self.constant / 2
        return min(found) > (1 - self.learning) * self.constant and not by_heart

    @property
    def frozen(self) -> bool:
        """Whether updates hardly move the weights."""
        return self.history.update_ratios.median < self.still

    @property
    def progress(self) -> str:
        """The progress of a run that has not learnt, in words."""
        h = self.history
        if h.improvement >= self.learning:
            return f"the loss ({h.losses.final:.4g}) is about that of a constant answer ({self.constant:.4g})"
        return f"the loss improved by {h.improvement:.1%} only"

    @property
    def stuck(self) -> bool:
        """Whether the run is long enough and has not learnt."""
        return self.long and not self.learns
