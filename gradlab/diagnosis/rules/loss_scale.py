"""Rules over fp16 and its loss scale."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Any

from gradlab.diagnosis.finding import Finding
from gradlab.diagnosis.finished_run import FinishedRun
from gradlab.diagnosis.history import History
from gradlab.diagnosis.rules.nonfinite import fits_wider
from gradlab.diagnosis.rules.rule import Rule, rule
from gradlab.diagnosis.wording import percent


@rule("scale_collapse", position=50)
@dataclass
class ScaleCollapse(Rule):
    """The loss scale fell below its floor, or was still falling towards it when the run ended.

    Or it fell far below 1 and stayed there, fp16 makes zeros of much of the gradient, and what was learnt is lost.

    A scale that has come down since the first update may just have begun too high, until it is below 1. That is over
    where no update was skipped for a window (`diagnosis.window`): what falls later falls from there.
    """

    causes = ("the learning rate is too high", "activations pass fp16's largest number, 65504")
    fixes = ("lower the learning rate", "use bf16, which has fp32's range")

    fall: float = 1000.0
    """Scale before the fall over that at the end, if it was still falling."""
    rose: float = 1.5
    """Final loss over the first above which what was learnt is lost, too."""
    often: float = 0.25
    """Fraction of the last updates that were skipped, if it was still falling."""

    def begin(self) -> None:
        self.recent: deque[bool] = deque(maxlen=40)
        self.descent: list[int] | None = None  # first skipped update, its epoch, skips
        self.height = self.scale = 0.0  # of the scale, before the descent and now
        self.smallest = math.inf

    def observe(self, line: dict[str, Any], layers: dict[str, list[Any]] | None, history: History) -> None:
        skipped, scale = bool(line["update/skipped"]), line["amp/scale"]
        self.recent.append(skipped)
        at_first = self.descent is not None and self.descent[0] == 1  # then what it was before is not known
        if skipped:
            if self.descent is None:
                self.descent, self.height = [line["attempt"], line["epoch"], 0], max(self.scale, scale)
            self.descent[2] += 1
        elif history.calm >= history.window if at_first else scale >= self.height:
            self.descent = None
        self.scale, self.smallest = scale, min(self.smallest, scale)

    def find(self, run: FinishedRun) -> Finding | None:
        falling = self.scale * self.fall < self.height and sum(self.recent) > self.often * len(self.recent)
        at, epoch, skips = self.descent or [run.history.attempts, 0, 0]
        falling = falling and (at > 1 or self.scale < 1)
        flushed = (run.inspection.flushed if run.inspection else None) or 0.0
        stayed = self.descent is not None and self.scale * self.fall < min(self.height, 1.0)
        stayed = stayed and flushed >= UnderflowFP16.fraction and (run.forgot or run.stuck or run.rose(self.rose))
        if not run.scale_too_small and not ((falling or stayed) and run.dynamic_loss_scale):
            return None
        streak = run.history.streak
        evidence = {"smallest_scale": self.smallest, "scale_fell_from": at, "scale_fell_in_epoch": epoch}
        evidence |= {"skipped_since": skips, "skipped_last_in_a_row": streak}
        if not run.scale_too_small:
            before = f"from {self.height:.3g} " * (at > 1)
            sentence = f"the loss scale fell {before}to {self.scale:.3g} by {skips} skipped updates"
            gone = f", where {percent(flushed)} of the gradient's elements that are not zero in fp32 are zero in fp16"
            sentence += ", and was still falling" if falling else gone
        elif streak:
            sentence = "no loss scale can help: the forward or backward pass itself overflows"
        else:
            sentence = f"the loss scale fell below the smallest that is useful, by {skips} skipped updates"
        found = self.found("critical", sentence, at, **evidence)
        if run.bad_at_first and not run.worsened:  # no rate had moved anything
            found.causes = [c for c in found.causes if "learning rate" not in c]
        elif 2 * run.history.skipped_bad > skips and not run.history.update_ratios.largest > 1:  # by the forward pass
            found.causes = found.causes[::-1]
        if run.overflow is not None and run.overflow.of_data:
            found.causes = ["inputs pass fp16's largest number, 65504"]
        return found


@rule("scale_livelock", position=40)
@dataclass
class ScaleLivelock(Rule):
    """Every update is skipped, and the loss scale stays, or falls so slowly that it comes to nothing.

    It halves at least once in so many skipped updates where it falls as a scaler's own settings have it.
    """

    causes = (
        "the loop skips the scaler's update after a non-finite gradient",
        "the loss scale begins far too high, and falls too little at each skipped update",
    )
    fixes = (
        "update the scale after every attempt, also after a skipped one",
        "begin with a smaller scale, and halve it",
    )
    updates: int = 8
    """Skipped updates in a row in which the scale must halve; scalers with hysteresis wait for two or three."""

    def begin(self) -> None:
        self.skipped = self.at = 0
        self.height = self.scale = math.nan  # when the first of them was skipped, and now

    def observe(self, line: dict[str, Any], layers: dict[str, list[Any]] | None, history: History) -> None:
        self.scale = line["amp/scale"]
        if not line["update/skipped"]:
            self.skipped = 0
            return
        if not self.skipped or self.scale <= self.height / 2 ** (1 + self.skipped // self.updates):
            self.skipped, self.at, self.height = 0, line["attempt"], self.scale
        self.skipped += 1

    def find(self, run: FinishedRun) -> Finding | None:
        if not run.dynamic_loss_scale or self.skipped < self.updates:
            return None
        still = self.scale == self.height
        if not still and (run.overflow is None or run.overflow.phase != "backward"):
            return None  # with a smaller scale it would overflow, too
        course = f"stayed at {self.scale:g}" if still else f"fell from {self.height:.3g} to {self.scale:.3g} only"
        sentence = f"the last {self.skipped} updates were skipped, and the loss scale {course}"
        found = self.found("critical", sentence, self.at, scale=self.scale, skipped=self.skipped)
        found.causes = [self.causes[not still]]
        return found

    def unable(self, run: FinishedRun) -> str | None:
        return None if run.dynamic_loss_scale else "there is no loss scale"


@rule("overflow_fp16", position=70)
@dataclass
class OverflowFP16(Rule):
    """A number in the forward pass is too large for fp16, but not for fp32."""

    causes = (
        "activations grow with the weights: the learning rate",
        "sums over many elements in fp16",
        "inputs or initial weights that are too large",
    )
    fixes = ("lower the learning rate", "use bf16", "normalise before the module that overflows")

    def find(self, run: FinishedRun) -> Finding | None:
        o = run.overflow
        if o is None or o.phase not in ("forward", "between") or not fits_wider(run):
            return None
        rate, sums, start = self.causes
        many, of = run.initial_overflows or (0, 0)
        too = ", too" * (run.history.applied > 0)  # else these are the weights that the run has
        initially = f"; with the initial weights {many} of {of} micro-batches overflow{too}" if many else ""
        found = self.found("critical", f"{o}{initially}", None, module=o.module, output=o.output_max)
        found.evidence |= {"initial_overflows": many} if many else {}
        found.causes = [start, sums, *[rate] * run.worsened] if run.bad_at_first else [rate, sums]
        if o.of_data:  # before any sum, and whatever the weights
            found.causes = ["inputs that are too large"]
        return found

    def unable(self, run: FinishedRun) -> str | None:
        return None if run.fp16_forward else "nothing is computed in fp16"


@rule("underflow_fp16", position=140)
@dataclass
class UnderflowFP16(Rule):
    """Gradients that are not zero in fp32 are zero in fp16."""

    needs = ("inspection",)
    causes = ("there is no loss scale", "the loss scale is too small")
    fixes = ("use a dynamic loss scale", "use bf16")
    fraction: float = 0.3
    """Fraction of the gradient's non-zero elements that are flushed to zero."""

    def find(self, run: FinishedRun) -> Finding | None:
        flushed = run.inspection.flushed if run.inspection else None
        if flushed is None or flushed < self.fraction:
            return None
        sentence = f"{percent(flushed)} of the gradient's elements that are not zero in fp32 are zero in fp16"
        found = self.found("critical" if run.stuck else "warning", sentence, None, flushed=flushed)
        found.causes = (
            ["the loss scale is too small"]
            if run.dynamic_loss_scale
            else ["there is no loss scale, or one that is fixed and too small"]
        )
        return found

    def unable(self, run: FinishedRun) -> str | None:
        return super().unable(run) if run.fp16_forward else "nothing is computed in fp16"
