"""A run that has ended, as the rules see it: measurements and how it ended; no name, no expectation, no remedy.

Learnt: better than at the beginning, and better than the best constant answer, by `diagnosis.learning` each. By the
evaluations where there are any, else by the last losses; where the best constant answer is not known, by the run's own
beginning alone. This is the one definition: maps, searches and rules ask `FinishedRun.learns`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from gradlab.diagnosis.history import History
from gradlab.diagnosis.series import median

if TYPE_CHECKING:
    from gradlab.diagnosis.inspection import Inspection
    from gradlab.diagnosis.replay.overflow import Overflow
    from gradlab.measure.samples import Sample

CLASSES = 1e5
"""More than most data have, for a bound where their number is not known."""
WHOLE = 0
"""Stands for the whole training set among attempts, which are counted from 1."""


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
    clips_whole: bool = True
    """Whether clipping, if there is any, scales the whole gradient by one number."""
    overflow: Overflow | None = None
    """The first tensor that was not finite when the failing update was run again."""
    inspection: Inspection | None = None
    """Of the model at the end."""
    never: list[str] | None = None
    """Parameters without a gradient in every update; None: only those updates are known whose layers were recorded."""
    opposed: str = ""
    """Why its loss need not fall, in words that follow "its loss"; empty where it should."""
    cut: str = ""
    """Where the graph of weights ends that it depends on, as far as known: a term of it may be trained by nothing."""
    betas: bool = True
    """Whether the optimizer keeps second moments of the gradients, as Adam does."""
    reverses: bool = False
    """Whether gradients are turned round on their way: its loss is a game of two networks."""
    generates: bool = False
    """Whether the model often ran without gradients too: what it put out may be data or targets."""
    targets: tuple[float, float] | None = None
    """Mean squares of a regression's targets at the beginning and at the end, where known."""
    constant: float | None = None
    """Loss of the best constant answer, where known: a model that is no better has learnt nothing from the inputs."""
    decay: Callable[[float, float, float], float] | None = None
    """How many times weight decay alone would have divided the weights by e: see `OptimizerOption.decays`."""
    samples: Mapping[int, list[Sample]] = field(default_factory=dict)
    """Of the attempts that rules suspect, the most unusual first; none where they cannot be measured.

    Under WHOLE those of the training set that stand out, where some of these attempts do."""
    eval_constant: float | None = None
    """The same on the data of the evaluations; None: as on the training data."""
    constants_of_terms: Mapping[str, float] = field(default_factory=dict)
    """Loss of the best constant answer to single terms of the loss, where it was found."""
    constant_found: bool = False
    """Whether these were found by minimising a loss of which nothing else is known, such as where its zero is."""
    window: int = 20
    learning: float = 0.05
    plateau: int = 100
    still: float = 1e-6

    def samples_of(self, attempt: int) -> str:
        """The samples of an update that stand out, in words that follow others; nothing where none was measured."""
        from gradlab.measure.samples import named  # loads PyTorch: not before the configuration was checked

        return f"; {named(self.samples[attempt])}" if self.samples.get(attempt) else ""

    def __post_init__(self) -> None:
        c, (end, error) = self.constant, self.history.end
        if c is not None and self.constant_found:
            # of some losses, such as of consistency or by triplets, a constant answer is best, or as good as any
            perfect = 0 <= c <= max(self.learning * min(self.history.loss_first, end), 1e-6 * self.history.loss_first)
            near = end <= c + max(0.1 * abs(c), 3 * error)
            worse = min(self.history.last, default=0.0) > 2 * max(self.history.loss_first, c) > 0  # than untrained
            self.constant = c if (near or worse) and not perfect else None
        elif c is not None and not c > 0:  # nothing is left to learn from the inputs
            self.constant = None
        if self.constant is None:
            self.eval_constant = None
        elif self.eval_constant is None or not (self.constant_found or self.eval_constant > 0):
            self.eval_constant = self.constant

    @property
    def long(self) -> bool:
        """Whether its first and its last losses are two windows, and so can be compared."""
        return self.history.losses.count >= 2 * self.window and not self.opposed

    @property
    def outgrown(self) -> bool:
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
        """What the loss came to: the median of the last ones, of a run that failed the very last."""
        losses = self.history.losses
        return losses.latest[-1] if self.status == "failed" and losses.count else losses.final

    @property
    def loss_at_end(self) -> str:
        """That in words that follow "to"."""
        finite = self.history.finite_losses
        if math.isfinite(self.last_loss) or not finite:
            return f"{self.last_loss:.3g}"
        return f"{finite[-1]:.3g}, its last finite value"

    @property
    def doubt(self) -> float:
        """The standard error of the median of the last losses."""
        last, late = self.history.last, self.history.loss_late
        return 1.25 * 1.4826 * median(sorted(abs(v - late) for v in last)) / len(last) ** 0.5 if last else math.nan

    def rose(self, factor: float) -> bool:
        """Whether the final loss is more than `factor` times the first, or that of the best constant answer.

        Or more than that times the first ones, if every one of the last is above every one of them. In a run too short
        for windows, if the last few are all above all others, and at twice that factor.
        """
        if self.opposed:
            return False
        h = self.history
        own = max(h.loss_first, h.loss_early)
        reference = own if self.constant is None else max(h.loss_first, self.constant)
        if self.long and h.last:
            rise, least = h.loss_late - reference, (factor - 1) * abs(reference)
            every = min(h.last) - reference > least  # a growing loss has a large spread, and is above all the same
            apart = min(h.last) > max(h.first) and h.loss_late - own > (factor - 1) * abs(own)
            return (rise > least and (rise > 5 * self.doubt or every)) or apart
        return not self.long and self.rising(2 * factor)

    def rising(self, factor: float) -> bool:
        """Whether a few losses end at `factor` times the first, and rise, or have been that high for a quarter of them.

        They rise if the last quarter, three at least, are above all before. Of 12 losses the last three are the largest
        by chance once in 220 runs, whatever their distribution; of fewer each of the three must be as high. Or all of
        those are over the square of the factor.
        """
        losses = self.history.finite_losses
        late = max(3, len(losses) // 4)
        if len(losses) < late + 2:
            return False
        before, now = losses[:-late], losses[-late:]
        usual = median(sorted(before))
        reference = max(self.history.loss_first, self.constant or -math.inf)
        least = (factor - 1) * max(abs(reference), 1.4826 * median(sorted(abs(v - usual) for v in before)))
        if min(now) - reference > (factor**2 - 1) * abs(reference) > 0:
            return True
        if len(losses) < 12:
            return min(now) > max(before) and min(now) - reference >= least
        rises = min(now) > max(before) and median(sorted(now[-3:])) - reference >= least
        first = max(reference, median(sorted(losses[:3])))
        return rises or (late >= 5 and min(now) - first > (factor - 1) * abs(first))

    @property
    def dead(self) -> bool:
        """Whether its last updates were all skipped, or applied with a non-finite loss.

        Where a loss scale comes down from too high a start, some are: there a window of them is needed.
        """
        h = self.history
        never = (not h.first and h.losses.count > 0) or (bool(h.streak) and not h.applied and not self.scaled)
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

        By `learning`; of a loss whose zero may mean nothing, by more than its noise, and by some of the fall to there
        or of itself: a fall from outputs of wild scale is no measure.
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
    def fits(self) -> bool:
        """Whether the training data, or those of the evaluations, are answered better than by a constant answer.

        Where that is not known: than at the beginning.
        """
        if self.constant is None:
            return self.improved or bool(self.generalizes)
        return self.better(self.history.end[0], self.constant) or bool(self.generalizes)

    @property
    def knows(self) -> bool:
        """Whether data are answered better than by a constant answer: those of the evaluations, where there are any."""
        return self.fits if self.generalizes is None else self.generalizes

    @property
    def left(self) -> float:
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
        """Whether that is so of the training data alone, beyond the noise of the last losses."""
        end, error = self.history.end
        known = self.constant is not None and self.better(end + 2 * error, self.constant)
        return known and self.improved and self.generalizes is False

    @property
    def learns(self) -> bool:
        """Whether it has learnt: see the definition above."""
        return self.long and self.improved and self.knows

    @property
    def trains(self) -> bool:
        """Whether the training data are answered better than at the beginning, and than by a constant answer."""
        return self.fits and self.improved

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
        if self.constant is None or self.knows or not self.long:
            return None
        if h.attempts < self.plateau:
            return f"ordinary training may need {self.plateau} updates to get there"
        if self.fits:
            return None
        if h.lr_last >= h.lr_highest > 1.5 * h.lr_first and h.attempts - h.lr_rose < self.plateau:
            return f"the learning rate rose until update {h.lr_rose}"
        return "the loss was still falling fast enough to get there in as many updates again" if self.falling else None

    @property
    def falling(self) -> bool:
        """Whether as many updates again would get it below the constant answer, at the fall of its end.

        That fall is taken to slow down from sixth to sixth of the run as it did from its second sixth on: two sixths at
        a time, since that of one may be noise. Where the last one fell by more than noise explains, it alone counts.
        """
        parts, h = self.history.losses_over_time.parts(6), self.history
        if not parts or self.constant is None:
            return False
        fall, before, error = parts[4] - parts[5], parts[3] - parts[4], h.noise / max(h.finite / 6, 1) ** 0.5
        if not fall > 3 * error:
            return False
        slows = min(fall / before, 1.0) if before > 0 else 1.0
        late, early = parts[3] - parts[5], parts[1] - parts[3]
        if 0 < late < early:
            usual = (late / early) ** 0.5
            smooth = late * usual / (1 + usual)
            if fall - smooth <= 2 * 2**0.5 * error:
                fall, slows = smooth, usual
        return self.better(parts[5] - fall * math.fsum(slows**i for i in range(1, 7)), self.constant)

    @cached_property
    def decayed(self) -> tuple[float, float] | None:
        """The weights' norms at first and at last, where weight decay outweighs the gradient in a run that is stuck.

        They have halved at least, and no further than decay alone would have taken them: the gradient does not keep
        them up.
        """
        h = self.history
        if self.decay is None or len(h.weights) < 2 or not self.long or (self.knows and not self.forgot):
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
        """Whether its rate came to nothing: updates hardly move the weights, and are worth too few at the full rate."""
        h = self.history
        return self.frozen and h.applied >= self.plateau and h.full_updates < 2 * self.window

    @property
    def progress(self) -> str:
        """The progress of a run that has not learnt, in words."""
        h, end = self.history, self.history.end[0]
        if self.constant is not None and not self.knows:
            gain = (self.constant - end) / abs(self.constant) if self.constant else 0.0
            than = f"the best constant answer{' found' * self.constant_found} ({self.constant:.4g})"
            beside = f"only {gain:.1%} below" if gain > 0 else "no better than"
            return f"the last losses have a mean of {end:.4g}, {beside} {than}"
        began = h.loss_early
        gain = (began - end) / abs(began) if began else 0.0
        if end < began and not gain < 1:  # of a loss near zero, as that of a policy, no share says anything
            return f"the loss went from {began:.4g} to {end:.4g} only"
        return (
            f"the loss improved by {gain:.1%} only"
            if gain > 0
            else f"the loss did not improve: {began:.4g} to {end:.4g}"
        )
