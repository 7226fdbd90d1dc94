"""The course of a finished run's loss: whether its ends can be compared, whether it rose, whether it stayed finite."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gradlab.diagnosis.history import History
from gradlab.diagnosis.measurements import Measurements
from gradlab.diagnosis.series import median
from gradlab.diagnosis.trends import rising


@dataclass(kw_only=True)
class LossCourse(Measurements):
    """What is known of a run, with the history of its updates."""

    history: History
    """Of its lines of metrics."""
    window: int
    """This and the following fields: see `gradlab.diagnosis.options`."""
    learning: float
    plateau: int
    still: float

    def __post_init__(self) -> None:
        """Forget a constant answer with which no model can be compared."""
        c, (end, error) = self.constant, self.history.end
        if c is not None and self.constant_found:
            # of some losses, such as of consistency or by triplets, a constant answer is best, or as good as any;
            # not of one that began and ends above it, if it is not the same for all of them
            perfect = 0 <= c <= max(self.learning * min(self.history.loss_first, end), 1e-6 * self.history.loss_first)
            near = end <= c + max(0.1 * abs(c), 3 * error)
            worse = min(self.history.last, default=0.0) > 2 * max(self.history.loss_first, c) > 0  # than untrained
            above = self.constant_chosen and not self.makes_targets and c < min(end, self.history.began)
            self.constant = c if (near or worse or above) and not perfect else None
        elif c is not None and not c > 0:  # nothing is left to learn from the inputs
            self.constant = None
        if self.constant is None:
            self.eval_constant = None
        elif self.eval_constant is None or not (self.constant_found or self.eval_constant > 0):
            self.eval_constant = self.constant

    @property
    def long(self) -> bool:
        """Whether its first and its last losses are two windows, and so can be compared."""
        return self.history.losses.count >= 2 * self.window and not self.need_not_fall

    @property
    def why_not_long(self) -> str:
        """Why its first and its last losses cannot be compared, where it is not long."""
        known, updates = self.history.losses.count, self.history.attempts
        if self.need_not_fall:
            return f"its loss {self.need_not_fall}"
        if updates and not known:
            return "its losses are not known"
        tried = "tried" if self.history.skipped else "has"
        have = f"the run {tried} {updates} update{'s' * (updates != 1)}"
        have = have if known >= updates else f"{known} losses are known"
        return f"{have}, fewer than {2 * self.window}"

    @property
    def lowest(self) -> float:
        """The lowest loss that there can be, where it is known and below that of a constant answer; else 0."""
        known = self.constant is not None and self.eval_constant is not None and not self.constant_found
        return self.floor if known and self.floor < min(self.constant, self.eval_constant) else 0.0  # type: ignore

    @property
    def targets_outgrew_loss(self) -> bool:
        """Whether the targets have grown, as in a curriculum, and the loss has halved relative to their size.

        Their size is the root of their mean square. Where a model runs away with its own targets, errors grow with
        these: absolute ones as fast, squares faster.
        """
        first, last = self.targets or (0.0, 0.0)
        began = max(self.history.loss_first, self.history.loss_early)
        fell = self.history.loss_late * first**0.5 < 0.5 * began * last**0.5
        return self.long and 0 < 2 * first < last and fell

    @property
    def last_loss(self) -> float:
        """The final loss: the median of the last ones; of a run that failed, the very last one."""
        losses = self.history.losses
        return losses.latest[-1] if self.status == "failed" and losses.count else losses.final

    @property
    def loss_at_end(self) -> str:
        """The final loss in words that follow "to"."""
        finite, losses = self.history.finite_losses, self.history.losses
        if math.isfinite(self.last_loss):
            end = f"{self.last_loss:.3g}"
            return end if end == f"{losses.latest[-1]:.3g}" else f"{end}, the median of the last {losses.window}"
        return f"{finite[-1]:.3g}, its last finite value" if finite else "NaN or infinity"

    @property
    def standard_error(self) -> float:
        """The standard error of the median of the last losses."""
        last, late = self.history.last, self.history.loss_late
        return 1.25 * 1.4826 * median(sorted(abs(v - late) for v in last)) / len(last) ** 0.5 if last else math.nan

    def rose(self, factor: float) -> bool:
        """Whether the final loss is more than `factor` times the first, or that of the best constant answer.

        Or more than that times the first ones, if every one of the last is above every one of them. In a run too short
        for windows, if the last few are all above all others, and at twice that factor.
        """
        if self.need_not_fall:
            return False
        h = self.history
        own = max(h.loss_first, h.loss_early)
        reference = own if self.constant is None else max(h.loss_first, self.constant)
        if self.long and h.last:
            rise, least = h.loss_late - reference, (factor - 1) * abs(reference)
            every = min(h.last) - reference > least  # a growing loss has a large spread, and is above all the same
            apart = min(h.last) > max(h.first) and h.loss_late - own > (factor - 1) * abs(own)
            return (rise > least and (rise > 5 * self.standard_error or every)) or apart
        return not self.long and rising(h.finite_losses, max(h.loss_first, self.constant or -math.inf), 2 * factor)

    @property
    def failed(self) -> bool:
        """Whether it was ended by a failure, or its last updates were not finite."""
        return self.status == "failed" or self.ended_nonfinite

    @property
    def ended_nonfinite(self) -> bool:
        """Whether its last updates were all skipped, or applied with a non-finite loss.

        While a loss scale comes down from too high a start, some are skipped: there it takes a window of them.
        """
        h = self.history
        never = (not h.first and h.losses.count > 0) or (
            bool(h.streak) and not h.applied and not self.dynamic_loss_scale
        )
        return h.attempts > 0 and (never or h.streak >= self.window or h.broken)
