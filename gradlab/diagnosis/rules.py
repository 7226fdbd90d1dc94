"""Streaming rules over the lines of metrics. They read measurements and how the run ended, and nothing else."""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any

from gradlab.clip import layers_of
from gradlab.diagnosis.options import Thresholds

VERDICTS = ("healthy", "scale_collapse", "exploding", "nan_gradient", "diverged", "vanishing", "interrupted")
"""Every verdict that a run can get."""


@dataclass
class Diagnosis:
    """One verdict, the sentence that says it and the numbers that it rests on."""

    verdict: str
    sentence: str
    evidence: dict[str, Any] = field(default_factory=dict)
    checked: list[str] = field(default_factory=list)
    unchecked: dict[str, str] = field(default_factory=dict)
    """Rules that could not be applied, and why."""

    @property
    def ill(self) -> bool:
        return self.verdict not in ("healthy", "interrupted")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Stream:
    """What the rules remember of a run: a bounded number of values however long it is."""

    def __init__(self, thresholds: Thresholds) -> None:
        self.t = thresholds
        self.first: list[float] = []
        self.last: deque[float] = deque(maxlen=thresholds.window)
        self.best = math.inf
        self.norms: deque[float] = deque(maxlen=200)
        self.largest, self.largest_at = 0.0, 0
        self.explodes_at: int | None = None
        self.calm = 0
        self.streak = 0  # skipped updates in a row, up to now
        self.descent: list[int] | None = None  # of the scale: first skipped update, its epoch, skips
        self.height = 0.0  # of the scale, before that
        self.scale = 0.0
        self.attempts = self.skipped = 0
        self.smallest_scale = math.inf
        self.eval_loss = 0.0  # of the last evaluation
        self.ratios: list[float] = []
        self.layers: list[tuple[str, float]] = []
        self.names: list[str] = []

    def observe(self, metrics: dict[str, Any], layers: list[float | None] | None) -> None:
        """Take in one line of metrics, and the (P,) gradient norms where they were recorded."""
        if "train/loss" not in metrics:
            self.eval_loss = metrics.get("eval/loss", self.eval_loss)
            return
        loss, norm = metrics["train/loss"], metrics["grad/norm"]
        self.attempts += 1
        skipped, scale = bool(metrics["update/skipped"]), metrics["amp/scale"]
        self.skipped += skipped
        self.streak = self.streak + 1 if skipped else 0
        if skipped:
            if self.descent is None:
                self.descent, self.height = [metrics["attempt"], metrics["epoch"], 0], max(self.scale, scale)
            self.descent[2] += 1
        elif scale >= self.height:
            self.descent = None
        self.scale, self.smallest_scale = scale, min(self.smallest_scale, scale)
        if math.isfinite(loss):
            if len(self.first) < self.t.window:
                self.first.append(loss)
            self.last.append(loss)
            if len(self.last) == self.t.window:
                self.best = min(self.best, statistics.fmean(self.last))
        if math.isfinite(norm):
            if norm > self.largest:
                self.largest, self.largest_at = norm, metrics["attempt"]
            if norm > self.t.exploding_norm and self.explodes_at is None:
                usual = statistics.median(self.norms) if len(self.norms) >= self.t.window else 0.0
                self.explodes_at = metrics["attempt"] if norm > self.t.growth * usual else None
            self.calm = self.calm + 1 if norm <= self.t.exploding_norm else 0
            if self.calm >= self.t.window:
                self.explodes_at = None  # a spike that the run survived
            self.norms.append(norm)
        if layers and self.names:
            self.flow(layers)

    def flow(self, layers: list[float | None]) -> None:
        """Late over early: mean norm of the last tenth of the layers over that of the first tenth, in model order."""
        names, index = layers_of(self.names)
        squares = [0.0] * len(names)
        for i, norm in zip(index, layers, strict=True):
            squares[i] += (norm or 0.0) ** 2
        norms = [math.sqrt(s) for s in squares]
        if len(norms) < 2 or not all(map(math.isfinite, norms)):
            return
        tenth = max(1, len(norms) // 10)
        early, late = statistics.fmean(norms[:tenth]), statistics.fmean(norms[-tenth:])
        self.ratios.append(late / early if early else math.inf if late else 1.0)
        self.layers = list(zip(names, norms, strict=True))


def diagnose(stream: Stream, status: str, error: str | None, t: Thresholds, scale_too_small: bool = False) -> Diagnosis:
    """The first cause, in the order in which one failure brings about the next.

    status: completed, failed or interrupted. error: what ended a failed run. scale_too_small: it was the loss scale.
    """
    first = stream.first[0] if stream.first else math.nan
    early = statistics.median(stream.first) if stream.first else math.nan
    last = statistics.median(stream.last) if stream.last else math.nan
    evidence: dict[str, Any] = {
        "updates": stream.attempts,
        "skipped": stream.skipped,
        "loss_first": first,
        "loss_best": min(stream.best, last) if stream.first else math.nan,
        "loss_last": last,
        "largest_grad_norm": stream.largest,
        "largest_grad_norm_at": stream.largest_at,
    }
    if stream.ratios:
        evidence["late_to_early_ratio"] = statistics.median(stream.ratios)
    checked, unchecked = ["scale_collapse", "nan_gradient", "exploding"], {}
    long = stream.attempts >= 2 * t.window
    for rule in ("diverged", "vanishing"):
        if not long:
            unchecked[rule] = f"the run has {stream.attempts} updates, fewer than {2 * t.window}"
        elif rule == "vanishing" and not stream.ratios:
            unchecked[rule] = "no norms of layers were recorded (monitor=none)"
        else:
            checked.append(rule)

    def verdict(name: str, sentence: str) -> Diagnosis:
        return Diagnosis(name, sentence, evidence, checked, unchecked)

    improvement = (early - evidence["loss_best"]) / abs(early) if early else 0.0
    reference = max(first, early)
    rose = long and last - reference > (t.diverged - 1) * abs(reference)
    dead = stream.attempts > 0 and (not stream.first or stream.streak >= t.window)
    lost = status == "failed" or rose or dead
    if scale_too_small:
        at, epoch, skips = stream.descent or [stream.attempts, 0, 0]
        evidence |= {"smallest_scale": stream.smallest_scale, "scale_fell_from": at, "scale_fell_in_epoch": epoch}
        evidence |= {"skipped_since": skips, "skipped_last_in_a_row": stream.streak}
        if stream.streak:
            says = "no loss scale helps any more: the forward or backward pass itself overflows"
        else:
            says = f"{skips} updates overflowed, though not the last: the loss scale has fallen below its floor"
        return verdict("scale_collapse", says)
    if lost and stream.explodes_at is not None:
        says = f"the gradient norm passed {t.exploding_norm:g} at update {stream.explodes_at} and reached"
        return verdict("exploding", f"{says} {stream.largest:.3g}; the loss went from {first:.3g} to {last:.3g}")
    if status == "failed":
        return verdict("nan_gradient", error or "the gradient is not finite")
    if dead:
        return verdict("nan_gradient", f"the last {stream.streak} updates were skipped: their gradients are not finite")
    if status == "interrupted":
        return verdict("interrupted", f"stopped after {stream.attempts} updates")
    if rose:
        return verdict("diverged", f"the loss went from {first:.3g} to {last:.3g}")
    if not math.isfinite(stream.eval_loss):
        return verdict("diverged", f"the loss of the last evaluation is {stream.eval_loss}")
    ratio = evidence.get("late_to_early_ratio", 1.0)
    if "vanishing" in checked and ratio > t.vanishing_ratio and improvement < t.learning:
        (bottom, low), (top, high) = stream.layers[0], stream.layers[-1]
        says = f"late layers' gradients are {ratio:.3g} times the early ones' ({top} {high:.2g}, {bottom} {low:.2g})"
        return verdict("vanishing", f"{says}, and the loss improved by {improvement:.1%} only")
    return verdict("healthy", f"the loss went from {first:.4g} to {last:.4g}")
