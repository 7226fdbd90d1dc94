"""Rules over a loss that rises, or that has no floor."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from gradlab.diagnosis.finding import Finding
from gradlab.diagnosis.finished_run import FinishedRun
from gradlab.diagnosis.rules.norm_trends import Trend
from gradlab.diagnosis.rules.rule import Rule, rule

CHANGED = "its targets have changed"


@rule("diverged", position=90)
@dataclass
class Diverged(Rule):
    """The loss ends far above where it began, or back there after falling; or the last evaluation is not finite.

    Back there is also a run whose losses and evaluations were better than the best constant answer, and end no better.

    Where the targets of a regression have grown too, or the model often ran without gradients, as in Q-learning, the
    loss may rise with its targets, and where the graph of some weights ends before the loss, by a term that nothing
    trains: the finding is then a warning. There is none where targets have grown and the loss
    has halved relative to their size.

    It is a warning where the losses and the evaluations have both lost `part` of their fall: what is learnt goes again.

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
    part: float = 0.25
    """The same, of the losses and of the evaluations, for a warning."""

    def find(self, run: FinishedRun) -> Finding | None:
        h = run.history
        if h.evaluations and not math.isfinite(h.evaluations[-1]) and not run.ended_nonfinite and run.overflow is None:
            return self.found("critical", f"the loss of the last evaluation is {h.evaluations[-1]}")
        if run.status == "given_up":
            return self.found("critical", str(run.error))
        if run.targets_outgrew_loss:
            return None
        if run.rose(self.factor):
            sentence = f"the loss went from {h.losses.initial:.3g} to {run.loss_at_end}"
            if moving := self.moving(run):
                return self.found("warning", f"{sentence}, and {moving[1]}: it diverges, or {moving[0]}")
            return self.found("critical", sentence)
        mean = math.fsum(h.first) / len(h.first) if h.first else math.nan
        began = max(h.loss_first, min(h.loss_early, mean))  # `loss_lowest` is a mean, which a few losses may lower
        reference = began if run.constant is None else min(began, run.constant)
        start = f"{reference:.3g}" + ", the best constant answer's," * (reference != began)
        fallen, back = reference - h.loss_lowest, h.loss_late - h.loss_lowest
        apart = bool(h.last) and h.loss_lowest < min(h.last)  # else both may be the same noisy level
        if run.long and fallen >= self.fell * abs(reference) and back >= self.lost * fallen and apart:
            sentence = f"the loss fell from {start} to {h.loss_lowest:.3g}, the lowest mean of {h.window} losses"
            sentence += f", and the last {len(h.last)} have a median of {h.loss_late:.3g}"
            severity, why = "critical", "what was learnt is lost"
            if moving := self.moving(run):
                severity, why = "warning", f"{why}, or {moving[0]}, since {moving[1]}"
            return self.found(severity, f"{sentence}: {why}", best=h.losses.best, last=h.losses.final)
        if self.moving(run):
            return None
        if run.forgot:
            return self.forgotten(run)
        least = max(self.part * fallen, 5 * run.standard_error)
        if not (run.long and fallen >= self.fell * abs(reference) and back >= least):
            return None
        level, evaluated = began if run.eval_constant is None else run.eval_constant, h.evaluated
        fall = level - min(evaluated, default=level)
        if fall <= 0 or evaluated[-1] - min(evaluated) < self.part * fall:
            return None
        sentence = f"the loss fell from {start} to {h.losses.best:.3g}, and ends at {h.losses.final:.3g}"
        sentence += f" (the last two are medians of {h.losses.window} losses)"
        sentence += f"; the best evaluation was {min(evaluated):.4g}, and the last is {evaluated[-1]:.4g}"
        return self.found("warning", sentence, best=min(evaluated), last=evaluated[-1])

    def forgotten(self, run: FinishedRun) -> Finding:
        """What was learnt, by the evaluations, is lost, however little it was."""
        best, last = min(run.history.evaluated), run.history.evaluations[-1]
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

    def moving(self, run: FinishedRun) -> tuple[str, str] | None:
        """What else may raise the loss of a model that learns, and what shows it."""
        if run.cut:
            return "a term of it has risen that nothing trains", run.cut
        if run.terms:
            return "it has got more terms", f"its sum had {run.terms[0]} at the beginning and has {run.terms[1]} now"
        first, last = run.targets or (0.0, 0.0)
        rise = abs(run.history.losses.final / max(run.history.losses.initial, 1e-300))
        if 0 < first * max(self.factor, rise**0.5) < last:
            return CHANGED, f"the mean square of its targets went from {first:.3g} to {last:.3g}"
        return (CHANGED, run.makes_targets) if run.makes_targets else None

    def unable(self, run: FinishedRun) -> str | None:
        h = run.history
        lost = h.evaluations and not math.isfinite(h.evaluations[-1])
        return (
            None
            if run.long or run.need_not_fall or lost or run.status == "given_up" or run.rose(self.factor)
            else run.why_not_long
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
        if not parts or run.need_not_fall or not parts[3] < 0 or not last > self.growth * first:
            return None
        falls = [before - after for before, after in pairwise(parts)]
        faster = 0 < falls[0] < falls[1] < falls[2] or falls[2] > self.growth * max(map(abs, falls[:2]))
        times = h.weights[1] / h.weights[0] if len(h.weights) > 1 and h.weights[0] > 0 else 1.0
        grown = times > self.weights or (times > self.below and h.loss_early < 0)
        fell = h.loss_early - parts[3] > self.fall * abs(h.loss_early) / (3 if grown else 1)
        if not (faster and fell):
            return None
        sentence = f"the loss falls faster and faster, from {h.losses.initial:.3g} to {h.finite_losses[-1]:.3g}"
        sentence += f", and the gradient norm grows with it{Trend.course(first, last)}; the loss has no floor"
        return self.found("critical", sentence, 1, norm_first=first, norm_last=last)

    def unable(self, run: FinishedRun) -> str | None:
        known = run.constant is not None and not run.constant_found
        return "the loss cannot fall below zero" if known else None
