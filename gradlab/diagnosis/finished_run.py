"""A run that has ended, as the rules see it: what follows from its measurements.

Learnt: better than at the beginning, and better than the best constant answer, by `diagnosis.learning` each. By the
evaluations where there are any, else by the last losses; where the best constant answer is not known, by the run's own
beginning alone. This is the one definition: maps, searches and rules ask `FinishedRun.learns`.
"""

from __future__ import annotations

import math
from functools import cached_property
from itertools import pairwise

from gradlab.diagnosis.measurements import Measurements
from gradlab.diagnosis.series import median
from gradlab.diagnosis.trends import extrapolated, rising

CLASSES = 1e5
"""More than most data have, for a bound where their number is not known."""


class FinishedRun(Measurements):
    """What the rules may read of a run that has ended."""

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
        have = (
            f"the run has {updates} update{'s' * (updates != 1)}" if known >= updates else f"{known} losses are known"
        )
        return f"{have}, fewer than {2 * self.window}"

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
        finite = self.history.finite_losses
        if math.isfinite(self.last_loss):
            return f"{self.last_loss:.3g}"
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
    def ended_nonfinite(self) -> bool:
        """Whether its last updates were all skipped, or applied with a non-finite loss.

        While a loss scale comes down from too high a start, some are skipped: there it takes a window of them.
        """
        h = self.history
        never = (not h.first and h.losses.count > 0) or (
            bool(h.streak) and not h.applied and not self.dynamic_loss_scale
        )
        return h.attempts > 0 and (never or h.streak >= self.window or h.broken)

    @cached_property
    def improved(self) -> bool:
        """Whether the last losses are below the first ones: by `learning`, and beyond their noise.

        The first ones are a window, or the first five: some runs are done within a window. By medians, and noise is
        three standard errors of those.
        """
        h, last = self.history, sorted(self.history.at_the_end)
        for first in (h.first[: self.window], h.first[:5]):
            if not first or not last or h.finite < 2 * len(first):
                continue
            began, end = median(sorted(first)), median(last)
            spread = 1.4826 * median(sorted(abs(v - end) for v in last))
            noise = 3 * 1.25 * spread * (1 / len(first) + 1 / len(last)) ** 0.5
            if self.constant is not None:  # then that is what an end is compared with
                began, end = max(began, math.fsum(first) / len(first)), h.end[0]
                noise = noise if self.constant_found else 0.0
            scale = began - self.constant if self.constant is not None and self.constant_found else began
            if began - end > max(self.learning * abs(scale), noise):
                return True
        return False

    def better(self, loss: float, constant: float) -> bool:
        """Whether a loss is below that of a constant answer by enough to count as learnt.

        By the fraction `learning` of it. Where zero may mean nothing, by more than the noise, and by that fraction of
        the fall to the constant or of its loss, whichever is less: outputs of wild scale begin with a large fall.
        """
        if self.constant_found:
            scale = min(abs(self.history.loss_early - constant), abs(constant))
            return loss < constant - max(3 * self.history.end[1], self.learning * scale)
        return loss <= (1 - self.learning) * constant

    @cached_property
    def generalizes(self) -> bool | None:
        """Whether any evaluation was better than the best constant answer; None where there was none.

        Where that is not known: whether one was better than the run's first losses, or than its own first; None if not,
        since a model that was trained before begins with lower losses than its evaluations have.
        """
        found = [v for v in self.history.evaluations if math.isfinite(v)]
        if not found:
            return None
        if self.eval_constant is not None:
            return self.better(min(found), self.eval_constant) or self.classifies
        began = max(self.history.loss_first, self.history.loss_early)
        fell = len(found) > 1 and min(found[1:]) < found[0] - self.learning / 10 * abs(found[0])
        return True if fell or min(found) <= began - self.learning * abs(began) else None

    @property
    def classifies(self) -> bool:
        """Whether an evaluation told classes apart, whatever its loss: a few answers far too sure make that up.

        By Fano's inequality: where errors are as rare, also the best constant answer would have a loss below its own.
        """
        error, most = 1 - self.history.accuracy, math.log(CLASSES)
        if self.constant_found or self.eval_constant is None or error > 0.5 or self.eval_constant > most:
            return False
        entropy = -math.fsum(p * math.log(p) for p in (error, 1 - error) if p > 0)
        return self.better(entropy + error * most, self.eval_constant)

    @cached_property
    def beats_constant_anywhere(self) -> bool:
        """Whether the training data, or those of the evaluations, are answered better than by a constant answer.

        Where that is not known: than at the beginning.
        """
        if self.constant is None:
            return self.improved or bool(self.generalizes)
        return self.better(self.history.end[0], self.constant) or bool(self.generalizes)

    @property
    def beats_constant(self) -> bool:
        """Whether data are answered better than by a constant answer: those of the evaluations, where there are any."""
        return self.beats_constant_anywhere if self.generalizes is None else self.generalizes

    @property
    def remaining_share(self) -> float:
        """The part of the loss of a constant answer that is left, at the end or in the best evaluation.

        NaN where that is not known, or zero may mean nothing.
        """
        if self.constant is None or self.eval_constant is None or self.constant_found:
            return math.nan
        best = min((v for v in self.history.evaluations if math.isfinite(v)), default=math.inf)
        return min(self.history.end[0] / self.constant, best / self.eval_constant)

    @property
    def forgot(self) -> bool:
        """Whether losses and evaluations were better than the best constant answer, and are no better at the end.

        Both, since a single one may be luck. Where that answer is not known, than the run's own beginning.
        """
        h = self.history
        found = [v for v in h.evaluations if math.isfinite(v)]
        if not self.long or not found or not h.first:
            return False
        if self.constant is not None and self.eval_constant is not None:
            was = self.better(h.loss_lowest, self.constant) and self.better(min(found), self.eval_constant)
            return was and not (self.better(h.end[0], self.constant) or self.better(found[-1], self.eval_constant))
        better = h.loss_early - max(self.learning * abs(h.loss_early), 3 * h.noise / self.window**0.5)
        return max(h.loss_lowest, min(found)) < better and min(h.end[0], found[-1]) >= h.loss_early

    @property
    def memorises(self) -> bool:
        """Whether only the training data are answered better than by a constant answer, beyond their noise."""
        end, error = self.history.end
        known = self.constant is not None and self.better(end + 2 * error, self.constant)
        return known and self.improved and self.generalizes is False

    @property
    def learns(self) -> bool:
        """Whether it has learnt: see the definition above."""
        return self.long and self.improved and self.beats_constant

    @property
    def trains(self) -> bool:
        """Whether the training data are answered better than at the beginning, and than by a constant answer."""
        return self.beats_constant_anywhere and self.improved

    @property
    def stuck(self) -> bool:
        """Whether the run is long enough to train, and does not."""
        return self.long and not self.trains

    @property
    def steady(self) -> bool:
        """Whether the loss fell from quarter to quarter, each time beyond its noise."""
        quarters, h = self.history.losses_over_time.parts(4), self.history
        error = h.noise / max(h.finite / 4, 1) ** 0.5
        return bool(quarters) and all(before - after > 3 * error for before, after in pairwise(quarters))

    @cached_property
    def undecided(self) -> str | None:
        """Why a run that is no better than a constant answer may just not be there yet; None if it should be."""
        h = self.history
        if self.constant is None or self.beats_constant or not self.long:
            return None
        if h.attempts < self.plateau:
            return f"ordinary training may need {self.plateau} updates to get there"
        if self.beats_constant_anywhere:
            return None
        if h.lr_last >= h.lr_highest > 1.5 * h.lr_first and h.attempts - h.lr_rose < self.plateau:
            return f"the learning rate rose until update {h.lr_rose}"
        return "the loss was still falling fast enough to get there in as many updates again" if self.falling else None

    @property
    def falling(self) -> bool:
        """Whether as many updates again would get it below the constant answer, at the fall of its end."""
        sixths, h = self.history.losses_over_time.parts(6), self.history
        if not sixths or self.constant is None:
            return False
        expected = extrapolated(sixths, error=h.noise / max(h.finite / 6, 1) ** 0.5)
        return expected is not None and self.better(expected, self.constant)

    @cached_property
    def decayed(self) -> tuple[float, float] | None:
        """The weights' norms at first and at last, where weight decay outweighs the gradient in a run that is stuck.

        They have halved at least, and no further than decay alone would have taken them: the gradient does not keep
        them up.
        """
        h = self.history
        if self.decay is None or len(h.weights) < 2 or not self.long or (self.beats_constant and not self.forgot):
            return None
        first, last = h.weights
        pull = self.decay(h.lr_sum, h.applied * h.update_ratios.median, h.grad_to_weight_ratios.median)
        return (first, last) if math.log(2) <= math.log(first / last) <= pull else None

    @property
    def frozen(self) -> bool:
        """Whether updates hardly move the weights."""
        return self.history.update_ratios.median < self.still

    @property
    def cut_short(self) -> bool:
        """Whether its rate fell to almost nothing too early: its updates are worth too few at the full rate."""
        h = self.history
        return self.frozen and h.applied >= self.plateau and h.full_updates < 2 * self.window
