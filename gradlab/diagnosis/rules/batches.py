"""Rules over single updates: one whose loss or gradient is far above those before, and what it did to the run."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gradlab.diagnosis.finding import Finding
from gradlab.diagnosis.finished_run import WHOLE_SET, WILD, FinishedRun
from gradlab.diagnosis.history import History
from gradlab.diagnosis.rules.rule import Rule, rule
from gradlab.diagnosis.series import median
from gradlab.diagnosis.wording import percent
from gradlab.measure.samples import Sample, dominated, named, outliers

AFTER = 10
"""Losses after a spike, by which its damage is measured."""


@dataclass
class Towering:
    """An update far above those before."""

    attempt: int
    loss: float
    norm: float
    before: float
    """The usual loss until then."""
    usual: float
    """The usual norm until then."""
    evaluations: int
    """Evaluations until then."""
    known: int = 0
    """Of how many updates until then that is known."""
    by_loss: bool = False
    """Whether the loss is what towers, and not the norm alone."""
    by_norm: bool = False
    after: list[float] = field(default_factory=list)
    recovered: bool = False
    """Whether the loss came back to what it was."""

    def step(self, following: float) -> bool:
        """Whether only the loss rose, and stayed where it was."""
        return self.norm <= 2 * self.usual and following - self.before > 0.5 * (self.loss - self.before)

    @property
    def hurt(self) -> float:
        """The usual loss after it over that before."""
        if len(self.after) < AFTER // 2 or self.before <= 0:
            return 1.0
        return median(sorted(self.after)) / self.before


@rule("bad_batch", position=55)
@dataclass
class BadBatch(Rule):
    """One update, of a batch with a sample unlike the others, is far above those before, and the run suffers from it.

    An update is far above them where its gradient, as it is applied, passes `factor` times the median of the 20
    updates before, or its loss lies as many times their spread above theirs. The run suffers where the loss, or the
    evaluation, never comes back; or where such updates are more than half of all the gradient that was ever
    applied: the weights then follow them, and under Adam their squares lower the rate of all others. The samples of
    the update are then measured one by one: they are at fault if some, with 30 times the usual loss or gradient
    norm, outweigh all others of the batch; where none do, the weights are, and other rules say so. Where the run
    ends because an operation overflows, they are only if their input or target lies 30 spreads beyond the others':
    else it is the operation that makes them large. Where all inputs are of wild scale none is, nor where others of an
    update that failed are not finite by themselves with the weights that it had.
    """

    causes = ("a sample that is an outlier, in its inputs or its target", "a wrong unit, or a missing normalisation")
    steep = "a loss that is far larger at some outputs or targets, as one that divides by what may be small"
    fixes = ("look at the samples named, and repair or leave them out", "clip the gradient norm", "use a robust loss")
    factor: float = 20.0
    """Norm of an update, after clipping, over the usual one; or its loss, in spreads above the usual one."""
    lost: float = 1.5
    """Loss, or evaluation, at the end over that before the update above which it is damage."""
    share: float = 0.5
    """Part of the gradient applied in the whole run that is theirs."""
    enough: int = 3
    """Updates before the first that can be judged."""

    def begin(self) -> None:
        self.losses: deque[float] = deque(maxlen=20)
        self.norms: deque[float] = deque(maxlen=20)
        self.spikes: list[Towering] = []
        self.count = self.far = 0  # updates that tower: those after one that does not, and all
        self.way = self.theirs = 0.0  # sums of applied norms: of all updates, and of these
        self.up = False  # whether the update before towered
        self.early: list[Towering] = []  # updates that none came before to compare with

    def observe(self, line: dict[str, Any], layers: dict[str, list[Any]] | None, history: History) -> None:
        loss = line.get("train/loss", math.nan)
        norm = line["grad/norm"] * line.get("clip/coefficient", 1.0)
        if line["update/skipped"] or not (math.isfinite(norm) or math.isfinite(loss)):
            return
        self.way += norm if math.isfinite(norm) else 0.0
        by_loss, by_norm = self.towers(loss, norm)
        towers = by_loss or by_norm
        self.far += towers
        if len(self.norms) < self.enough:
            self.early.append(Towering(line["attempt"], loss, norm, loss, norm, 0))
        if self.up and self.spikes and self.spikes[-1].step(loss):
            self.theirs -= self.spikes.pop().norm  # a new level, and no spike
            self.count -= 1
        if towers and not self.up:
            self.count += 1
            self.theirs += norm if math.isfinite(norm) else 0.0
            new = Towering(line["attempt"], loss, norm, mid(self.losses), mid(self.norms), len(history.evaluations))
            new.known, new.by_loss, new.by_norm = len(self.norms), by_loss, by_norm
            self.spikes = (
                [*self.spikes[-20:], new] if len(self.spikes) < 40 else [self.spikes[0], *self.spikes[-20:], new]
            )
        elif math.isfinite(loss):
            for s in self.spikes:
                self.follow(s, loss)
        if math.isfinite(loss):
            self.losses.append(loss)
        if math.isfinite(norm):
            self.norms.append(norm)
        self.up = towers

    def towers(self, loss: float, norm: float) -> tuple[bool, bool]:
        """Whether the loss does, and the norm: by the median, since a sample comes back in every epoch of a few."""
        if len(self.norms) < self.enough:
            return False, False
        by_norm = norm > self.factor * mid(self.norms)
        if len(self.losses) < self.enough:
            return False, by_norm
        usual, low, high = quartiles(self.losses)
        return loss > usual + self.factor * max(high - low, 0.05 * abs(usual)), by_norm

    @staticmethod
    def follow(spike: Towering, loss: float) -> None:
        if len(spike.after) < AFTER:
            spike.after.append(loss)
        elif not spike.recovered:
            spike.after = [*spike.after[1:], loss]
        if not spike.recovered and len(spike.after) >= AFTER // 2:
            spike.recovered = median(sorted(spike.after[-AFTER // 2 :])) <= spike.before + 0.1 * abs(spike.before)

    def suspects(self, run: FinishedRun) -> list[int]:
        chosen = [*self.spikes[:1], *self.unrecovered[:1]]
        if self.spikes:
            chosen += [max(self.spikes, key=lambda s: s.norm), max(self.spikes, key=lambda s: s.hurt)]
        chosen += self.early if run.status == "failed" and not self.spikes[1:] else []
        failing = {run.history.bad_since} if run.status == "failed" and run.history.bad_since else set()
        return sorted({s.attempt for s in chosen} | failing)

    @property
    def unrecovered(self) -> list[Towering]:
        """From the first on after which the loss never came back."""
        last = max((i for i, s in enumerate(self.spikes) if s.recovered), default=-1)
        return self.spikes[last + 1 :]

    def find(self, run: FinishedRun) -> Finding | None:
        guilty = [s for s in self.spikes if self.at_fault(run, s.attempt)]
        if not guilty:  # the weights are at fault, or the data were from the very beginning
            return self.at_once(run)
        lasting = next((s for s in self.unrecovered if s in guilty and self.lasts(run, s)), None)
        spike = lasting or guilty[0]
        sentence = f"update {spike.attempt} is far above the median of the {spike.known} before it:"
        sentence += f" {self.above_them(run, spike)}"
        others = f"{self.far - 1} others are" if self.far > 2 else "another one is"
        sentence += f" ({others}, too)" if self.far > 1 else ""
        sentence += run.samples_of(spike.attempt)
        severity, damage, lost = self.damage(run, spike, lasting is not None)
        evidence: dict[str, Any] = {
            "loss": spike.loss,
            "norm": spike.norm,
            "usual_loss": spike.before,
            "usual_norm": spike.usual,
        }
        samples = run.samples[spike.attempt]
        evidence |= {"count": self.count, "samples": like(run, samples)}
        found = self.found(severity, f"{sentence}; {damage}" if damage else sentence, spike.attempt, **evidence)
        found.lost = lost
        if all(s.ordinary for s in outliers(samples)):
            found.causes, found.evidence["steep"] = [self.steep], True
        return found

    @staticmethod
    def above_them(run: FinishedRun, spike: Towering) -> str:
        """The loss or the norm, or both: what of an update is far above those before."""
        norm = "gradient norm after clipping" if run.clips else "gradient norm"
        seen = ((spike.by_loss, "loss", spike.loss, spike.before), (spike.by_norm, norm, spike.norm, spike.usual))
        return ", ".join(f"{name} {now:.3g} (their median: {usual:.3g})" for has, name, now, usual in seen if has)

    def at_fault(self, run: FinishedRun, attempt: int) -> bool:
        """Whether samples of the update are, and not the operation that fails on them."""
        samples, o = run.samples.get(attempt, []), run.overflow
        computed = o is not None and o.phase not in ("inputs", "targets", "parameters", "buffers")
        return may_be(run, samples) and dominated(samples) and (not computed or any(s.unlike for s in samples))

    def at_once(self, run: FinishedRun) -> Finding | None:
        """Of a run that failed: one of its first updates, before anything was usual; or the one that failed."""
        if run.status != "failed":
            return None
        at = run.history.bad_since or 0
        bad = [s.attempt for s in self.early if self.at_fault(run, s.attempt)]
        last = run.samples.get(at, [])
        if may_be(run, last) and any(s.unlike for s in last):
            bad.append(at)
        if not bad:
            return None
        samples, when = run.samples[bad[0]], "in" if bad[0] == at else "after"
        sentence = f"the run failed {when} update {bad[0]}; {named(samples)}"
        return self.found("critical", sentence, bad[0], count=1, samples=like(run, samples))

    def unable(self, run: FinishedRun) -> str | None:
        return "the samples of single updates could not be measured" if self.spikes and not run.samples else None

    def damage(self, run: FinishedRun, spike: Towering, lasting: bool) -> tuple[str, str, str]:
        """Severity, what the updates did to the run, and the class of a run that is lost by them."""
        h = run.history
        part = self.theirs / self.way if self.way else 0.0
        first = ", of those in a row the first," * (self.far > self.count)
        share = f"{self.count} of {h.attempts} updates{first} have {percent(part)} of the sum of all applied norms"
        if lasting:
            return "critical", f"the loss never came back: it went to {run.loss_at_end}", "diverged"
        before, last = h.evaluations[: spike.evaluations], h.evaluations[-1:]
        by_heart = h.loss_late < 0.9 * spike.before
        if before and len(h.evaluations) > len(before) and self.above(run, last[0], min(before)) and not by_heart:
            return "critical", f"the evaluation went from {min(before):.3g} to {last[0]:.3g}", "diverged"
        if part > self.share:
            severity = "critical" if not run.beats_constant else "warning" if run.improved else "info"
            return severity if run.long else "info", share, ""
        # of many the largest would be large by chance
        if median(sorted(s.hurt for s in self.spikes)) > self.lost:
            return "warning", "the losses after such an update were usually higher than those before it", ""
        return "info", "", ""

    def lasts(self, run: FinishedRun, spike: Towering) -> bool:
        """Whether the run ended with the loss that the update left behind."""
        return run.failed or (
            len(spike.after) >= AFTER // 2 and self.above(run, run.history.losses.final, spike.before)
        )

    def above(self, run: FinishedRun, value: float, before: float) -> bool:
        """Whether a loss is damage: also beside what there is to learn, else that of a converged model rises easily."""
        whole = run.history.loss_first if run.constant is None else run.constant
        return not value <= before + max((self.lost - 1) * abs(before), run.learning * abs(whole))


def like(run: FinishedRun, samples: list[Sample]) -> list[int]:
    """The samples of an update that stand out, then those of the whole training set that are unlike the others."""
    found = [*outliers(samples), *(s for s in run.samples.get(WHOLE_SET, []) if s.unlike)]
    return list(dict.fromkeys(s.index for s in found))


def may_be(run: FinishedRun, samples: Sequence[Sample]) -> bool:
    """Whether some samples may be at fault: neither are all of wild scale, nor do others fail with the last weights."""
    return not run.input_size >= WILD and not any(s.broken and not s.stands_out for s in samples)


def quartiles(values: deque[float]) -> tuple[float, float, float]:
    """The median, and the quartiles below and above it."""
    ordered = sorted(values)
    return median(ordered), ordered[len(ordered) // 4], ordered[(3 * len(ordered)) // 4]


def mid(values: deque[float]) -> float:
    return median(sorted(values))
