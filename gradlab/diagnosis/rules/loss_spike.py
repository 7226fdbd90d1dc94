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
