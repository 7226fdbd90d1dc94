"""Rules over the loss."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Any

from gradlab.diagnosis.finding import Finding
from gradlab.diagnosis.finished_run import FinishedRun
from gradlab.diagnosis.history import History
from gradlab.diagnosis.rules.rule import Rule, rule
from gradlab.diagnosis.series import Recent, median


@rule("diverged", position=90)
@dataclass
class Diverged(Rule):
    """The loss ends far above where it began, or back there after falling; or the last evaluation is not finite."""

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
        if h.evaluations and not math.isfinite(h.evaluations[-1]) and not run.dead:
            return self.found("critical", f"the loss of the last evaluation is {h.evaluations[-1]}")
        if run.status == "given_up":
            return self.found("critical", str(run.error))
        if run.rose(self.factor):
            return self.found("critical", f"the loss went from {h.losses.initial:.3g} to {h.losses.final:.3g}")
        began = max(h.loss_first, h.loss_early)
        reference = began if run.constant is None else min(began, run.constant)
        fallen, back = reference - h.loss_lowest, h.loss_late - h.loss_lowest
        apart = bool(h.last) and h.loss_lowest < min(h.last)  # else both may be the same noisy level
        if run.long and fallen >= self.fell * abs(reference) and back >= self.lost * fallen and apart:
            sentence = f"the loss fell from {reference:.3g} to {h.losses.best:.3g}, and is back at {h.losses.final:.3g}"
            return self.found(
                "critical", f"{sentence}: what was learnt is lost", best=h.losses.best, last=h.losses.final
            )
        return None

    def unable(self, run: FinishedRun) -> str | None:
        h = run.history
        lost = h.evaluations and not math.isfinite(h.evaluations[-1])
        return (
            None
            if run.long or lost or run.status == "given_up" or run.rose(self.factor)
            else f"the run has {h.attempts} updates, fewer than {2 * run.window}"
        )


@rule("stalled", position=190)
@dataclass
class Stalled(Rule):
    """The loss does not move, and no other rule explains it."""

    fallback = True
    needs = ("long",)
    causes = ("the learning rate is too low", "the gradient does not reach the weights", "the targets are noise")
    fixes = ("raise the learning rate", "check the targets: are they noise?")
    flat: float = 0.01
    """Relative improvement of the loss that counts as none."""

    def find(self, run: FinishedRun) -> Finding | None:
        h = run.history
        evaluated = [e for e in h.evaluations if math.isfinite(e)]
        improved = len(evaluated) > 1 and min(evaluated[1:]) < evaluated[0] - self.flat / 2 * abs(evaluated[0])
        ratio = h.update_ratios.median
        if run.status == "interrupted":
            return None
        if run.frozen and not run.learns:
            sentence = f"an update changes the weights by {ratio:.1g} of them, and {run.progress}"
            return self.found("critical", sentence, ratio=ratio)
        if h.improvement >= self.flat or improved or not h.finite:
            return None
        sentence = f"the loss has not moved: {h.loss_early:.4g} at first, {h.losses.best:.4g} at best"
        return self.found("warning", sentence, ratio=ratio)


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
        loss = line["train/loss"]
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

    def find(self, run: FinishedRun) -> Finding | None:
        if self.first is None or not run.learns:
            return None
        at, usual, height = self.first
        sentence = f"the loss rose from {usual:.3g} to {height:.3g} at update {at}, and came back"
        more = f" ({self.count} times)" if self.count > 1 else ""
        return self.found("warning", sentence + more, at, usual=usual, height=height, count=self.count)


@rule("small_but_healthy", position=210)
@dataclass
class SmallButHealthy(Rule):
    """Gradients are small and the model learns: there is no problem."""

    fixes = ("change nothing",)
    needs = ("long",)
    norm: float = 1e-6
    """Usual norm of the gradient below which it is small."""

    def find(self, run: FinishedRun) -> Finding | None:
        h = run.history
        if not h.usual_norm < self.norm or not run.learns or run.status == "failed" or h.loss_late >= h.loss_early:
            return None
        sentence = f"gradients are small (norm {h.usual_norm:.2g}), and the loss falls: {h.loss_early:.4g} to"
        return self.found("info", f"{sentence} {h.losses.best:.4g}. Small is not a problem", norm=h.usual_norm)
