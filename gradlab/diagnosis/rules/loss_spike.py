"""The rule over a loss that leapt and came back."""

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


@dataclass
class Rise:
    """The loss left its usual range."""

    began: int
    """The first of the updates that did."""
    usual: float
    """The loss before."""
    height: float
    """The highest level so far."""
    top: int
    """The update at which it was reached."""
    early: float
    """The highest level within a window."""
    known: int
    """The number of losses that it was above."""

    @property
    def is_slow(self) -> bool:
        """Whether most of the way was still to go when the first window was over."""
        return self.height - self.usual > 2 * (self.early - self.usual)


@rule("loss_spike_recovered", position=200)
@dataclass
class SpikeRecovered(Rule):
    """The loss rose far above its usual range, and came back.

    One that rises over many updates is no spike, as the loss of a net that gives up one solution for another: of which
    less than half is within the first window (`diagnosis.window`). That is information, as is one where a gradient is
    reversed, and one network learns against another.

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
        self.rise: Rise | None = None  # the one under way
        self.count = 0
        self.first: Rise | None = None
        self.highest: Rise | None = None
        self.slow: Rise | None = None

    def observe(self, line: dict[str, Any], layers: dict[str, list[Any]] | None, history: History) -> None:
        loss = line.get("train/loss", math.nan)
        if not math.isfinite(loss):
            return
        if self.rise is None and len(self.now) == self.smooth:
            self.recent.add(self.now[0])
        self.now.append(loss)
        level = math.fsum(self.now) / len(self.now)
        if (rise := self.rise) is not None:
            if level > rise.height:
                rise.height, rise.top = level, line["attempt"]
            if line["attempt"] < rise.began + history.window:
                rise.early = rise.height
            if level <= rise.usual + 0.1 * abs(rise.usual):
                if rise.is_slow:
                    self.slow = self.slow or rise
                else:
                    self.first, self.count = self.first or rise, self.count + 1
                    self.highest = max(self.highest or rise, rise, key=lambda r: r.height)
                self.rise = None
        elif len(self.recent.values) >= 2 * history.window and min(self.now) > self.recent.ordered[-1]:
            usual = self.recent.median
            height = median(sorted(self.now)) - usual
            large = height > (self.factor - 1) * abs(usual) and height > self.share * abs(history.loss_early)
            if large and height > self.spread * self.recent.spread:
                at, known = line["attempt"], len(self.recent.values)
                self.rise = Rise(at - self.smooth + 1, usual, level, at, level, known)

    def suspects(self, run: FinishedRun) -> list[int]:
        return [self.first.began] if self.first else []

    def find(self, run: FinishedRun) -> Finding | None:
        rise = self.first or self.slow
        if rise is None or not run.trains:
            return None
        sentence = f"by update {rise.began} the loss had risen above all of the {rise.known} before; it reached"
        sentence += (
            f" {rise.height:.3g} (a mean of {self.smooth}, to update {rise.top}) where their median is {rise.usual:.3g}"
        )
        sentence += f", and came back{f', the first of {self.count} times' if self.count > 1 else ''}"
        highest = max((r for r in (rise, self.highest, self.rise) if r), key=lambda r: r.height)
        if highest is not rise:
            sentence += f"; the highest reached {highest.height:.3g}, at update {highest.top}"
        sentence += f"; one from update {self.rise.began} on had not come back at the end" if self.rise else ""
        seen = {"usual": rise.usual, "height": highest.height, "count": max(self.count, 1)}
        severity = "info" if rise is self.slow or run.reverses else "warning"
        return self.found(severity, sentence + run.samples_of(rise.began), rise.began, **seen)
