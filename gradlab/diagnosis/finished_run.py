"""A run that has ended, as the rules see it: what follows from its measurements.

Learnt: better than at the beginning, and better than the best constant answer, by `diagnosis.learning` each. By the
evaluations where there are any, else by the last losses; where the best constant answer is not known, beside the run's
own beginning. Rules ask `FinishedRun.learns`; maps and searches the diagnosis: an unhealthy run has not learnt.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from gradlab.diagnosis.initial_sizes import ORDINARY, initial_sizes
from gradlab.diagnosis.loss_course import LossCourse
from gradlab.diagnosis.series import median
from gradlab.diagnosis.trends import extrapolated, falls_to_the_last

if TYPE_CHECKING:
    from gradlab.measure.samples import Sample

WHOLE_SET = 0
"""Stands for the whole training set among attempts, which are counted from 1."""
WILD = 1e3
"""Size of inputs from which on they are what is wrong: of pixels it is 255."""
BEYOND = 1.01
"""Size of targets over the largest output that there can be, from which on outputs cannot reach them."""
USUAL = 10.0
"""Largest magnitude of an input or a target of ordinary size."""
CLASSES = 1e5
"""More than most data have, for a bound where their number is not known."""


@dataclass(kw_only=True)
class FinishedRun(LossCourse):
    """What the rules may read of a run that has ended."""

    samples: Mapping[int, list[Sample]] = field(default_factory=dict)
    """Of the attempts that rules suspect, the most unusual first; none where they cannot be measured.

    Under WHOLE_SET those of the training set that stand out, where some of these attempts do."""

    @cached_property
    def sizes(self) -> list[float]:
        """Of the weights that the run began with (see `initial_sizes`); empty where they are not known."""
        return [*initial_sizes(self.header, self.history.first_norms)[0].values()] if self.header else []

    @cached_property
    def ordinary(self) -> dict[str, bool]:
        """What may be too large at the beginning -> whether nothing shows that it is, or its wild size is named.

        Inputs and targets that were not measured are not accused; of initial weights that often leaves nothing.
        """
        inputs, targets = (not USUAL < size < WILD for size in (self.input_size, self.target_size))
        weights = bool(self.sizes) and max(self.sizes) <= ORDINARY
        return {
            "the initial weights": weights,
            "the inputs": inputs,
            "the targets": targets or self.history.classes,
        }

    def samples_of(self, attempt: int) -> str:
        """The samples of an update that stand out, in words that follow others; nothing where none was measured."""
        from gradlab.measure.samples import named  # loads PyTorch: not before the configuration was checked

        said = named(self.samples.get(attempt, []))
        return f"; {said}" if said else ""

    @property
    def bad_at_first(self) -> bool:
        """Whether initial weights are at fault: they overflow, the first loss is not finite, or none was applied."""
        overflows = self.initial_overflows is not None and self.initial_overflows[0] > 0
        return overflows or not (self.history.applied and self.history.starts_finite)

    @property
    def worsened(self) -> bool:
        """Whether updates may have added to overflows that the initial weights have on some micro-batches alone."""
        many, of = self.initial_overflows or (0, 0)
        return many < of and self.history.applied > 0 and self.history.starts_finite

    @cached_property
    def improved(self) -> bool:
        """Whether the last losses are below the first ones: by `learning`, and beyond their noise.

        The first ones are a window, or the first five: some runs are done within a window. By medians, and noise is
        three standard errors of those.
        """
        h, last = self.history, sorted(self.history.at_the_end)
        for first in (h.undamaged, h.undamaged[:5]):
            if not first or not last or h.finite < 2 * len(first):
                continue
            began, end = median(sorted(first)), median(last)
            spread = 1.4826 * median(sorted(abs(v - end) for v in last))
            noise = 3 * 1.25 * spread * (1 / len(first) + 1 / len(last)) ** 0.5
            if self.constant is not None:  # then that is what an end is compared with
                began, end = max(began, math.fsum(first) / len(first)), h.end[0]
                noise = noise if self.constant_found else 0.0
            scale = began - (self.constant if self.constant is not None and self.constant_found else self.lowest)
            if began - end > max(self.learning * abs(scale), noise):
                return True
        return self.evaluates_below_first

    @property
    def evaluates_below_first(self) -> bool:
        """Whether the last evaluation is below the first losses, too, where some are better than a constant answer.

        An evaluation is of all samples: noise is of the first losses alone, and not of the last batches'.
        """
        h, last = self.history, self.history.evaluated[-1:]
        if self.eval_constant is None or not self.generalizes:
            return False
        for first in (h.undamaged, h.undamaged[:5]):
            if len(first) > 1 and h.finite >= 2 * len(first):
                began, noise = statistics.fmean(first), 3 * statistics.stdev(first) / len(first) ** 0.5
                if began - last[0] > max(self.learning * abs(began - self.lowest), noise):
                    return True
        return False

    def better(self, loss: float, constant: float, error: float | None = None) -> bool:
        """Whether a loss is below that of a constant answer by enough to count as learnt.

        By the fraction `learning` of it, as far as it is above the lowest loss that there can be. Where zero may mean
        nothing, by more than the noise, and by that fraction of the fall to the constant or of its loss, whichever is
        less: outputs of wild scale begin with a large fall. Of a fall that is less than batches differ, by that
        fraction of how much they do.

        error: of the loss; None: that of the last ones.
        """
        if self.constant_found:
            fall = max(abs(self.history.loss_early - constant), self.history.noise)
            scale = min(fall, abs(constant))
            noise = self.history.end[1] if error is None else error
            return loss < constant - max(3 * noise, self.learning * scale)
        return loss <= constant - self.learning * (constant - self.lowest)

    def evaluates_better(self, loss: float, constant: float) -> bool:
        """The same of an evaluation: it is of the samples of which the constant answer's loss is.

        What these samples add to a loss they add to both, as losses of batches have and evaluations have not. The noise
        is then that from one evaluation to the next, where several are known after the first.
        """
        later = [v for v in self.history.evaluations[1:] if math.isfinite(v)]
        steps = sorted(abs(after - before) for before, after in pairwise(later))
        return self.better(loss, constant, min(median(steps), self.history.end[1]) if len(steps) > 1 else None)

    @cached_property
    def generalizes(self) -> bool | None:
        """Whether any evaluation was better than the best constant answer; None where there was none.

        Where that is not known: whether one was better than the run's first losses, or beyond their noise than the
        first evaluation; of losses that rose the last. None if not, since a model that was trained before begins with
        lower losses than its evaluations have.
        """
        found = self.history.evaluated
        if not found:
            return None
        if self.eval_constant is not None:
            return self.evaluates_better(min(found), self.eval_constant) or self.classifies
        began = max(self.history.loss_first, self.history.loss_early)
        rose = self.history.end[0] > began + max(self.learning * abs(began), 3 * self.history.end[1])
        best, share = (found[-1], self.learning) if rose else (min(found), self.learning / 10)
        fell = best < found[0] - max(share * abs(found[0]), 3 * self.jitter)
        return True if fell or best <= began - self.learning * abs(began) else None

    @property
    def jitter(self) -> float:
        """The usual distance of the steps from one evaluation to the next, after the first, from their mean."""
        later = [v for v in self.history.evaluations[1:] if math.isfinite(v)]
        steps = [after - before for before, after in pairwise(later)]
        return median(sorted(abs(s - math.fsum(steps) / len(steps)) for s in steps)) if steps else 0.0

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
    def remaining_share(self) -> tuple[float, str]:
        """The part of the loss of a constant answer that is left, at the end or in the last evaluation, and in which.

        NaN where that is not known, or zero may mean nothing.
        """
        if self.constant is None or self.eval_constant is None or self.constant_found:
            return math.nan, ""
        last = [math.inf, *self.history.evaluated][-1]  # of the model that was inspected
        evaluated = last / self.eval_constant, "in the last evaluation"
        return min((self.history.end[0] / self.constant, "in the last training losses"), evaluated)

    @property
    def forgot(self) -> bool:
        """Whether losses and evaluations were better than the best constant answer, and are no better at the end.

        Both, since a single one may be luck. Where that answer is not known, than the run's own beginning.
        """
        h = self.history
        found = h.evaluated
        if not self.long or not found or not h.first:
            return False
        if self.constant is not None and self.eval_constant is not None:
            was = self.better(h.loss_lowest, self.constant) and self.evaluates_better(min(found), self.eval_constant)
            now = self.better(h.end[0], self.constant) or self.evaluates_better(found[-1], self.eval_constant)
            return was and not now
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

    @property
    def learnt_once(self) -> bool:
        """Whether it was better than a constant answer at some time: by a window of losses, or an evaluation."""
        lowest = self.history.loss_lowest
        return self.constant is not None and (self.better(lowest, self.constant) or bool(self.generalizes))

    @property
    def out_of_reach(self) -> str:
        """Targets that the last activation cannot return, as a cause; empty where there are none."""
        i = self.inspection
        if i is None or not i.activations or not self.target_size > max(1.0, BEYOND * i.output_bound):  # 1: classes
            return ""
        last = i.activations[-1].operation or "the last activation"
        return f"targets of up to {self.target_size:.3g} (the median of a batch), beyond what {last} can return"

    @property
    def falls_throughout(self) -> bool:
        """Whether the losses fell from quarter to quarter, or the evaluations, without batches' noise, to the last."""
        return self.steady or falls_to_the_last(self.history.evaluated)

    @property
    def misses_constant(self) -> bool:
        """Whether the last losses are above those of a constant answer by more than noise and an ordinary rate explain.

        Targets that do not belong to the inputs leave that answer within reach.
        """
        end, error = self.history.end
        return self.constant is not None and end - self.constant > max(self.learning * abs(self.constant), 3 * error)

    @property
    def times_constant(self) -> float:
        """How many times the loss of a constant answer the first losses were, where it fell throughout; else 0."""
        known = self.constant is not None and self.constant > 0 and self.falls_throughout
        return self.history.loss_early / self.constant if known else 0.0  # type: ignore[operator]

    @cached_property
    def undecided(self) -> str | None:
        """Why a run that is no better than a constant answer may just not be there yet; None if it should be.

        Where that answer is not known: than at its beginning.
        """
        h = self.history
        if self.beats_constant or not self.long:
            return None
        if self.constant is None:
            fell = h.began - h.end[0] > self.learning * abs(h.began) and h.attempts < self.plateau
            return "losses differ too much from update to update to tell whether they fall" if fell else None
        if h.attempts < self.plateau:
            return f"ordinary training may need {self.plateau} updates to get there"
        if self.evaluations_get_there:
            return "the evaluations were still falling fast enough to get there in as many updates again"
        if self.beats_constant_anywhere:
            return None
        if h.lr_last >= h.lr_highest > 1.5 * h.lr_first and h.attempts - h.lr_rose < self.plateau:
            return f"the learning rate rose until update {h.lr_rose}"
        return "the loss was still falling fast enough to get there in as many updates again" if self.falling else None

    @property
    def evaluations_get_there(self) -> bool:
        """Whether evaluations that fall to the last would, at the smaller of the last two falls."""
        found = self.history.evaluated
        if self.eval_constant is None or not falls_to_the_last(found):
            return False
        fall = min(before - after for before, after in pairwise(found[-3:]))
        return self.better(found[-1] - len(found) * fall, self.eval_constant)

    @property
    def falling(self) -> bool:
        """Whether as many updates again would get it below the constant answer, at the fall of its end.

        Not where the last evaluation rose: losses that swing fall at the end by chance.
        """
        sixths, h = self.history.losses_over_time.parts(6), self.history
        if not sixths or self.constant is None or h.evaluated[-1:] > h.evaluated[-2:-1] > []:
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
    def thrown(self) -> bool:
        """Whether an update moved the weights by more than their norm, and usual ones hardly move them since."""
        return self.frozen and self.history.update_ratios.largest > 1

    @property
    def cut_short(self) -> bool:
        """Whether its rate fell to almost nothing too early: its updates are worth too few at the full rate."""
        h = self.history
        return self.frozen and h.applied >= self.plateau and h.full_updates < 2 * self.window
