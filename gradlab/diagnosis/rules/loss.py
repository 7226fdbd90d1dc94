"""Rules over the loss."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from gradlab.diagnosis.finding import Finding
from gradlab.diagnosis.finished_run import FinishedRun
from gradlab.diagnosis.history import History
from gradlab.diagnosis.rules.loss_scale import UnderflowFP16
from gradlab.diagnosis.rules.rule import Rule, rule
from gradlab.diagnosis.series import Recent, median

LARGE, SMALL = 1e-2, 1e-4
"""Norm of a usual update over that of the weights, above and below which the learning rate is the likeliest cause."""


@rule("diverged", position=90)
@dataclass
class Diverged(Rule):
    """The loss ends far above where it began, or back there after falling; or the last evaluation is not finite.

    Back there is also a run whose losses and evaluations were better than the best constant answer, and end no better.

    Where the targets of a regression have grown too, or the model often ran without gradients, as in Q-learning, the
    loss may rise with its targets: the finding is then a warning. There is none where targets have grown and the loss
    has halved relative to their size.

    Of a run too short for two windows only what is certain is said: the loss has become twice `factor` times the first,
    and was still rising.
    """

    causes = ("the learning rate is too high", "gradients are not clipped", "there is no warm-up")
    fixes = ("lower the learning rate", "clip the gradient norm", "warm the learning rate up")
    factor: float = 1.5
    """Final loss over the first."""
    fell: float = 0.2
    """Relative improvement of the loss that a run must not lose again."""
    lost: float = 0.9
    """Share of it that is lost at the end."""

    def find(self, run: FinishedRun) -> Finding | None:
        h = run.history
        if h.evaluations and not math.isfinite(h.evaluations[-1]) and not run.dead and run.overflow is None:
            return self.found("critical", f"the loss of the last evaluation is {h.evaluations[-1]}")
        if run.status == "given_up":
            return self.found("critical", str(run.error))
        if run.outgrown:
            return None
        if run.rose(self.factor):
            sentence = f"the loss went from {h.losses.initial:.3g} to {run.loss_at_end}"
            if why := self.moving(run):
                return self.found("warning", f"{sentence}, and {why}: it diverges, or rises with its targets")
            return self.found("critical", sentence)
        began = max(h.loss_first, h.loss_early)
        reference = began if run.constant is None else min(began, run.constant)
        fallen, back = reference - h.loss_lowest, h.loss_late - h.loss_lowest
        apart = bool(h.last) and h.loss_lowest < min(h.last)  # else both may be the same noisy level
        if run.long and fallen >= self.fell * abs(reference) and back >= self.lost * fallen and apart:
            sentence = f"the loss fell from {reference:.3g} to {h.losses.best:.3g}, and is back at {h.losses.final:.3g}"
            severity, why = "critical", "what was learnt is lost"
            if moving := self.moving(run):
                severity, why = "warning", f"{why}, or its targets have changed, since {moving}"
            return self.found(severity, f"{sentence}: {why}", best=h.losses.best, last=h.losses.final)
        return self.forgotten(run) if run.forgot and not self.moving(run) else None

    def forgotten(self, run: FinishedRun) -> Finding:
        """What was learnt, by the evaluations, is lost, however little it was."""
        best, last = min(v for v in run.history.evaluations if math.isfinite(v)), run.history.evaluations[-1]
        level = run.history.loss_early if run.eval_constant is None else run.eval_constant
        of = "the first losses" if run.eval_constant is None else "a constant answer"
        sentence = f"the best evaluation was {best:.4g}, and the last is {last:.4g} ({of}: {level:.4g})"
        sentence += ": what was learnt is lost"
        if run.decayed is None:
            return self.found("critical", sentence, best=best, last=last)
        before, now = run.decayed
        sentence += f"; weight decay has taken the weights from a norm of {before:.3g} to {now:.3g}"
        found = self.found("critical", sentence, best=best, last=last, weights_first=before, weights_last=now)
        found.causes = ["weight decay that outweighs the gradient"]
        return found

    def moving(self, run: FinishedRun) -> str:
        """Why the loss of a model that learns may rise: its targets come from a model that changes. Else nothing."""
        first, last = run.targets or (0.0, 0.0)
        rise = abs(run.history.losses.final / max(run.history.losses.initial, 1e-300))
        if 0 < first * max(self.factor, rise**0.5) < last:
            return f"the mean square of its targets went from {first:.3g} to {last:.3g}"
        return "the model also runs without gradients, as where it makes its data or targets" if run.generates else ""

    def unable(self, run: FinishedRun) -> str | None:
        h = run.history
        lost = h.evaluations and not math.isfinite(h.evaluations[-1])
        return (
            None
            if run.long or run.opposed or lost or run.status == "given_up" or run.rose(self.factor)
            else f"the run has {h.attempts} update{'s' * (h.attempts != 1)}, fewer than {2 * run.window}"
        )


@rule("unbounded_loss", position=45)
@dataclass
class UnboundedLoss(Rule):
    """The loss falls below zero faster and faster, while the gradient norm grows with it: it has no floor.

    A loss that has one slows down on its way there. Falling for ever is what a negated loss does, or one that pays for
    large outputs; what the model learns of the data has no part in it.
    """

    causes = (
        "the loss, or a term of it, has the wrong sign",
        "a term that rewards large outputs without bound",
    )
    fixes = (
        "check the sign of every term: what is minimised must have a floor",
        "bound what is rewarded: a log-sigmoid, a clamp, a penalty on the outputs",
    )
    fall: float = 100.0
    """Fall of the loss over the size of the first one."""
    growth: float = 10.0
    """Gradient norm at the end over that at the beginning."""
    weights: float = 5.0
    """The same of the weights; then a third of that fall is enough: outputs grow with them, and the loss with these."""
    below: float = 2.0
    """The same where the first losses are below zero already."""

    def find(self, run: FinishedRun) -> Finding | None:
        h = run.history
        parts, (first, last) = h.losses_over_time.parts(4), h.norm_drift
        if not parts or run.opposed or not parts[3] < 0 or not last > self.growth * first:
            return None
        falls = [before - after for before, after in pairwise(parts)]
        faster = 0 < falls[0] < falls[1] < falls[2] or falls[2] > self.growth * max(map(abs, falls[:2]))
        times = h.weights[1] / h.weights[0] if len(h.weights) > 1 and h.weights[0] > 0 else 1.0
        grown = times > self.weights or (times > self.below and h.loss_early < 0)
        fell = h.loss_early - parts[3] > self.fall * abs(h.loss_early) / (3 if grown else 1)
        if not (faster and fell):
            return None
        sentence = f"the loss falls faster and faster, from {h.losses.initial:.3g} to {min(h.finite_losses):.3g}"
        sentence += f", and the gradient norm grows with it, from {first:.3g} to {last:.3g}: the loss has no floor"
        return self.found("critical", sentence, 1, norm_first=first, norm_last=last)

    def unable(self, run: FinishedRun) -> str | None:
        known = run.constant is not None and not run.constant_found
        return "the loss cannot fall below zero" if known else None


@rule("stalled", position=190)
@dataclass
class Stalled(Rule):
    """The weights hardly move (`diagnosis.still`), the model does not learn, and no other rule explains it."""

    fallback = True
    needs = ("long", "steps")
    causes = ("the learning rate is too low", "the gradient does not reach the weights")
    fixes = ("raise the learning rate", "check that the gradient reaches the weights")

    def find(self, run: FinishedRun) -> Finding | None:
        if run.status == "interrupted" or run.learns or not run.frozen:
            return None
        ratio = run.history.update_ratios.median
        sentence = f"an update usually changes the weights by {ratio:.1g} times their norm, and {run.progress}"
        return self.found("critical", sentence, ratio=ratio)


@rule("not_learning", position=195)
@dataclass
class NotLearning(Rule):
    """The run ends no better than the best constant answer, however far its loss fell, and no other rule explains it.

    That answer is the same for every input: the shares of the classes, the mean of the values. Its loss is known for
    cross_entropy, mse and bce, and is found for a loss of your own by minimising it; in a watched loop it is that of
    the labels of mean cross-entropies. Elsewhere the run is judged by its own beginning alone, which says less: the
    finding is then a warning, since training that begins at its best does not improve either. Nothing is said of a loss
    whose targets the model may make, or that fell relative to targets that grew (see `diverged`). Weight decay is named
    as the cause where the weights have shrunk to half at least, and no further than decay alone would have taken them.
    """

    fallback = True
    needs = ("long",)
    causes = (
        "the learning rate is far too high, or too low",
        "the targets do not belong to the inputs: shuffled, shifted, or broadcast by the loss",
        "inputs of wild scale",
        "the gradient does not reach the weights",
    )
    fixes = (
        "try learning rates a tenth and ten times as high",
        "check that samples and targets belong together, and the shapes that the loss is given",
        "normalise the inputs",
    )
    reach: float = 0.02
    """Part of the constant answer's loss by which the end must be below it, else critical; to `learning` a warning."""
    far: float = 10.0
    """First losses over the constant answer's, above which a loss that falls throughout began far off."""

    def find(self, run: FinishedRun) -> Finding | None:
        h, (end, error) = run.history, run.history.end
        if run.status == "interrupted" or run.knows or run.memorises or run.undecided or not h.finite:
            return None
        if h.broken:  # nan_loss
            return None
        if run.frozen:  # stalled
            return None
        if run.constant is None:
            judged = [*h.first, *h.at_the_end]
            both_signs = min(judged, default=0.0) < 0 < max(judged, default=0.0)  # no part of it is progress
            if run.steady or both_signs or run.generates or run.outgrown:
                return None
            sentence = f"{run.progress} (the best constant answer of this loss is not known)"
            return self.caused(run, self.found("warning", sentence, first=h.loss_early, end=end))
        seen: dict[str, Any] = {"constant": run.constant, "end": end, "standard_error": error, "first": h.loss_first}
        evaluated = [v for v in h.evaluations if math.isfinite(v)]
        level, constant, sentence = end, run.constant, run.progress
        if evaluated and run.eval_constant is not None:
            level, constant = min(evaluated), run.eval_constant
            sentence += f"; the best evaluation is {level:.4g} (constant: {constant:.4g})"
            seen |= {"evaluation": level, "evaluation_constant": constant}
        doubt = 2 * error if evaluated else 0.0  # an evaluation is of all samples, and says enough
        close = min(level / constant, (end + doubt) / run.constant) > 1 - self.reach
        severity = "critical" if (not run.fits if run.constant_found else close) else "warning"
        if run.decayed is None:
            times = h.loss_early / run.constant
            if not (times > self.far and run.steady):
                return self.caused(run, self.found(severity, sentence, **seen))
            sentence += f"; the first losses were {times:.3g} times that, and the loss was falling to the end"
            found = self.found(severity, sentence, **seen, times=times)
            found.causes = [
                "targets whose mean or size is far from that of the outputs",
                "initial weights that are too large",
                "the learning rate is too low, or the run too short",
            ]
            return found
        first, last = run.decayed
        seen |= {"weights_first": first, "weights_last": last}
        sentence += f"; weight decay has taken the weights from a norm of {first:.3g} to {last:.3g}"
        found = self.found(severity, sentence, **seen)
        found.causes = ["weight decay that outweighs the gradient"]
        return found

    def caused(self, run: FinishedRun, found: Finding) -> Finding:
        """With the rate as the first cause in the direction that the updates show; else as the last, if it is one."""
        usual, (rate, *others) = run.history.update_ratios.median, self.causes
        if usual > LARGE:
            found.causes = ["the learning rate is far too high", *others]
        elif usual < SMALL:
            found.causes = ["the learning rate is far too low", *others]
        elif usual == usual:
            found.causes = [*others, rate]
        return found


@rule("memorising", position=197)
@dataclass
class Memorising(Rule):
    """The training loss improves, and no evaluation was ever better than the best constant answer.

    What is learnt holds for the training data alone.
    """

    needs = ("long",)
    causes = (
        "the targets do not belong to the inputs",
        "too few samples for the size of the model",
        "evaluation data that are unlike the training data",
    )
    fixes = (
        "check that samples and targets belong together",
        "train on more samples, or a smaller model",
        "check that both sets are prepared alike",
    )

    def find(self, run: FinishedRun) -> Finding | None:
        h, end = run.history, run.history.end[0]
        if run.status == "interrupted" or run.undecided or not run.memorises:
            return None
        best, against = (
            min(v for v in h.evaluations if math.isfinite(v)),
            f"(a constant answer: {run.eval_constant:.4g})",
        )
        sentence = f"the last training losses have a mean of {end:.4g}, and the best evaluation is {best:.4g} {against}"
        return self.found("warning", sentence, train=end, evaluation=best, constant=run.eval_constant)


@rule("loss_spike_recovered", position=200)
@dataclass
class SpikeRecovered(Rule):
    """The loss rose far above its usual range, and came back.

    Small batches have large losses now and then, sometimes two in a row, so a fixed threshold would be wrong. That
    `smooth` losses in a row exceed all of the hundred before is equally rare whatever their distribution is.
    """

    needs = ("long",)
    causes = ("the learning rate is near its limit", "a batch of outliers", "Adam's second moments lag (beta2)")
    fixes = ("clip the gradient norm", "lower the learning rate", "lower Adam's beta2")
    factor: float = 1.5
    """Loss over the usual one above which it is a spike, if it is also outside of the spread."""
    spread: float = 8.0
    """Spreads (robust standard deviations) over the usual loss."""
    share: float = 0.1
    """The rise must also be this part of the first loss: a tiny loss may double."""
    smooth: int = 3
    """Updates over which the loss is averaged; all of them must exceed the losses before."""

    def begin(self) -> None:
        self.recent = Recent(100)
        self.now: deque[float] = deque(maxlen=self.smooth)
        self.before: float | None = None  # the usual loss when the spike under way began
        self.at = self.count = 0
        self.first: tuple[int, float, float] | None = None
        self.height = 0.0

    def observe(self, line: dict[str, Any], layers: dict[str, list[Any]] | None, history: History) -> None:
        loss = line.get("train/loss", math.nan)
        if not math.isfinite(loss):
            return
        if self.before is None and len(self.now) == self.smooth:
            self.recent.add(self.now[0])
        self.now.append(loss)
        level = math.fsum(self.now) / len(self.now)
        if self.before is not None:
            self.height = max(self.height, level)
            if level <= self.before + 0.1 * abs(self.before):
                self.count += 1
                self.first = self.first or (self.at, self.before, self.height)
                self.before = None
        elif len(self.recent.values) >= 2 * history.window and min(self.now) > self.recent.ordered[-1]:
            usual = self.recent.median
            rise = median(sorted(self.now)) - usual
            large = rise > (self.factor - 1) * abs(usual) and rise > self.share * abs(history.loss_early)
            if large and rise > self.spread * self.recent.spread:
                self.before, self.at, self.height = usual, line["attempt"], level

    def suspects(self, run: FinishedRun) -> list[int]:
        return [self.first[0] - self.smooth + 1] if self.first else []

    def find(self, run: FinishedRun) -> Finding | None:
        if self.first is None or not run.trains:
            return None
        at, usual, height = self.first
        sentence = f"the loss rose from {usual:.3g} to {height:.3g} at update {at}, and came back"
        more = f" ({self.count} times)" if self.count > 1 else ""
        more += run.samples_of(at - self.smooth + 1)
        return self.found("warning", sentence + more, at, usual=usual, height=height, count=self.count)


@rule("too_short", position=205)
@dataclass
class TooShort(Rule):
    """The run has too few updates to be called healthy, and nothing is wrong with it that is certain.

    Rules that compare an end with a beginning need two windows (`diagnosis.window`), 40 updates: diverged, vanishing,
    overclipped, dead_units, stalled and others would be blind before. A run that is no better than the best constant
    answer by then is given `diagnosis.plateau` updates, or more while its learning rate still rises or its loss falls
    fast enough. What is certain is said of any run: values that are not finite, a loss that has tripled and rises, a
    loss scale that does not move.
    """

    fallback = True
    decides = True
    fixes = ("train for more updates",)

    def find(self, run: FinishedRun) -> Finding | None:
        h = run.history
        if not run.undecided and (h.losses.count or h.attempts) >= 2 * run.window:
            return None
        many = "1 update" if h.attempts == 1 else f"{h.attempts} updates"
        if not h.finite:
            course = "its losses are not known"
        elif run.undecided:
            course = f"{run.progress}; {run.undecided}"
        else:
            course = f"the loss went from {h.losses.initial:.4g} to {h.losses.final:.4g}"
        if h.attempts and not h.applied:
            course = "all of them were skipped"
        least = f", fewer than {2 * run.window}," * (not run.long)
        return self.found("info", f"{many}{least} {'is' if h.attempts == 1 else 'are'} too few to judge: {course}")


@rule("small_but_healthy", position=210)
@dataclass
class SmallButHealthy(Rule):
    """Gradients are small and the model learns: there is no problem."""

    decides = True
    fixes = ("change nothing",)
    needs = ("long",)
    norm: float = 1e-6
    """Usual norm of the gradient below which it is small."""

    def find(self, run: FinishedRun) -> Finding | None:
        h = run.history
        if not 0 < h.usual_norm < self.norm or not run.learns or run.status == "failed" or h.loss_late >= h.loss_early:
            return None
        if run.inspection is not None and (run.inspection.flushed or 0.0) >= UnderflowFP16.fraction:
            return None  # fp16 makes them zero
        sentence = f"gradients are small (norm {h.usual_norm:.2g}), and the loss falls: {h.loss_early:.4g} to"
        return self.found("info", f"{sentence} {h.losses.best:.4g}. Small is not a problem", norm=h.usual_norm)
