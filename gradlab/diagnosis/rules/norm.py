"""Rules over the norm of the whole gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from gradlab.base.visible import several
from gradlab.diagnosis.finding import Finding
from gradlab.diagnosis.finished_run import FinishedRun
from gradlab.diagnosis.history import History
from gradlab.diagnosis.rules.layers import passed
from gradlab.diagnosis.rules.loss_scale import UnderflowFP16
from gradlab.diagnosis.rules.nonfinite import fits_wider
from gradlab.diagnosis.rules.rule import Rule, rule
from gradlab.diagnosis.series import median
from gradlab.diagnosis.wording import CUTS
from gradlab.update.layers import late_to_early_ratio


@rule("exploding", position=60)
@dataclass
class Exploding(Rule):
    """The gradient norm leaves its usual range, and the loss rises or becomes non-finite with it.

    What is usual is the median of the norms before; no number is large by itself, as the norm of a loss that is summed
    over a batch is large throughout. It began where that was left for good, or from where on the loss has not come
    back. Where the first updates fail already there is none: then it is how far the first gradient has moved the
    weights, or that numbers which had grown large overflow, of samples on which the initial weights do not. Where the
    first update that is applied after skipped ones has a usual norm, they were skipped for a loss scale that was too
    large for their type.

    It is information where the norm came back, and has left the weights many times their size.
    """

    causes = (
        "the gradient is multiplied by more than 1 at every layer or time step",
        "the initial weights, the inputs or the targets are too large",
        "the learning rate is too high",
    )
    fixes = (
        "clip the gradient norm",
        "lower the learning rate",
        "warm the learning rate up",
        "use a better initialisation or normalisation",
    )
    growth: float = 10.0
    """Norm over the usual one; its square while fewer than `diagnosis.window` norms are known."""
    step: float = 10.0
    """Norm of the first update over that of the weights, in a run that does not survive it by a window."""
    lost: float = 1.5
    """Final loss over the first above which the loss counts as failed."""
    large: float = 0.01
    """Norm of an update over that of the weights, before that, above which the learning rate is the likeliest cause."""

    burst: float = 1e6
    """Norm over the usual one, in a run that is not lost by its loss, for information."""
    grown: float = 1e3
    """The weights' norm at the end over that at first which such a norm must have left."""

    def begin(self) -> None:
        self.highest = (0.0, 0, math.nan)  # the largest norm that left the usual one, its update, and the usual one
        self.moved = 0.0  # the largest of the updates before it began, of those that were measured
        self.at: int | None = None
        self.held = False  # whether all updates since then were skipped
        self.times = 0  # that it was left
        self.usual = math.nan  # before it was left
        self.known: list[float] = []  # the norms then
        self.left = math.nan  # the norm that left it
        self.reached = math.nan  # since then
        self.calm = 0
        self.before = math.nan  # the usual loss then
        self.first: dict[str, Any] = {}
        self.layers: list[float] = []  # norms of the gradients of layers, at the first update

    def observe(self, line: dict[str, Any], layers: dict[str, list[Any]] | None, history: History) -> None:
        norm = line["grad/norm"]
        if not self.first:
            self.first = line
            self.layers = [n for n, has in zip(history.layers, history.reached, strict=True) if has and layers]
        if self.at is None:
            if not math.isnan(norm):
                self.leave(line, history)
            return
        usual = norm <= self.growth * self.usual
        if self.held and usual and not line["update/skipped"]:
            self.at, self.times = None, self.times - 1
            return
        self.held &= bool(line["update/skipped"])
        if math.isnan(norm):  # it may have been usual, as those before it
            self.calm += self.calm > 0
        else:
            self.calm = self.calm + 1 if usual else 0
            self.reach(line)
        least = max((self.lost - 1) * abs(self.before), 0.1 * abs(history.loss_early))  # a tiny loss may double
        if self.calm >= history.window and not history.loss_late > self.before + least:
            self.at = None  # a spike that the run survived

    def leave(self, line: dict[str, Any], history: History) -> None:
        """Whether this norm leaves the usual ones, and what they were."""
        norm, known = line["grad/norm"], history.norms.without(line["grad/norm"])  # those before
        factor = self.growth if len(known) >= history.window else self.growth**2
        if not (known and norm > factor * median(known)):
            self.moved = max(self.moved, line.get("update/ratio", 0.0))
            return
        self.at, self.usual, self.held = line["attempt"], median(known), bool(line["update/skipped"])
        self.before, self.known, self.left, self.reached = history.loss_late, known, norm, norm
        self.calm, self.times = 0, self.times + 1
        self.reach(line)

    def reach(self, line: dict[str, Any]) -> None:
        self.reached = max(self.reached, norm := line["grad/norm"])
        if norm < math.inf:
            self.highest = max(self.highest, (norm, line["attempt"], self.usual))

    def find(self, run: FinishedRun) -> Finding | None:
        h = run.history
        # Where the targets have grown, the norm has grown with them.
        targets = run.targets_outgrew_loss or (run.makes_targets and self.calm >= h.window)
        if not (run.failed or (run.rose(self.lost) and not targets)):
            return self.survived(run)
        if run.overflow is not None and run.overflow.phase == "loss" and run.overflow.moderate:
            return None  # the loss function is the cause
        course = f"the loss went from {h.losses.initial:.3g} to {run.loss_at_end}"
        course = course if h.finite != 1 else f"the only finite loss was {h.losses.initial:.3g}"
        if self.at is not None:
            few, again = len(self.known), " again" * (self.times > 1)
            sentence = (
                f"the gradient norm passed {self.growth:g} times {self.usual:.3g}, the median of the {few} before,"
            )
            sentence += f"{again} at update {self.at}"
            if few < run.window:
                before = f"at most {self.known[-1]:.3g} in the {few} updates" if few > 1 else f"{self.usual:.3g}"
                sentence = f"the gradient norm, {before} before, was {self.left:.3g} at update {self.at}"
            sentence += f", and reached {self.reached:.3g}" * (few >= run.window or self.reached > self.left)
            evidence = {"largest": self.reached, "usual_before": self.usual}
            return self.caused(run, self.found("critical", f"{sentence}; {course}", self.at, **evidence))
        moved, norm = (self.first.get(name, math.nan) for name in ("update/ratio", "grad/norm"))
        if h.attempts > h.window or not (moved > self.step or by_the_weights(run)):
            return None
        sentence = f"the first gradient, of norm {norm:.3g}, moved the weights by {moved:.3g} times their own norm"
        if by_the_weights(run):
            sentence += f"; update {h.bad_since} overflows, on samples on which the initial weights do not"
        return self.caused(run, self.found("critical", f"{sentence}; {course}", 1, largest=h.largest, moved=moved))

    def survived(self, run: FinishedRun) -> Finding | None:
        """A norm beyond all others that came back, where the weights did not."""
        (norm, at, usual), weights = self.highest, run.history.weights
        if not (self.burst * usual < norm < math.inf and weights and weights[-1] > self.grown * weights[0] > 0):
            return None
        sentence = f"the gradient norm reached {norm:.3g} at update {at}, from a median of {usual:.3g}; the norm of"
        sentence += f" the weights went from {weights[0]:.3g} to {weights[-1]:.3g}"
        return self.caused(run, self.found("info", sentence, at, largest=norm, usual_before=usual, weights=weights[-1]))

    def caused(self, run: FinishedRun, found: Finding) -> Finding:
        """With the likeliest cause first: a first gradient larger than the weights, or updates that were large."""
        chain, _, rate = self.causes
        multiplied = [chain] if self.grows_backwards(run) else []
        large = [name for name, is_ordinary in run.ordinary.items() if not is_ordinary]
        initial = [f"{' or '.join(large)} are too large"] if large else []
        if initial and self.first["grad/norm"] > self.first.get("param/norm", math.inf):
            found.causes = [*initial, *multiplied, rate]
        elif max(self.moved, self.first.get("update/ratio", 0.0)) > self.large:
            found.causes = [rate, *multiplied, *initial]
        else:
            found.causes = [*multiplied, *initial, rate]
        return found

    def grows_backwards(self, run: FinishedRun) -> bool:
        """Whether early layers' first gradients are the larger ones; also where there may be time steps."""
        over_time = run.header is None or bool(run.header.get("recurrent"))
        return over_time or (len(self.layers) > 1 and late_to_early_ratio(self.layers) < 1 / self.growth)


def by_the_weights(run: FinishedRun) -> bool:
    """Whether the run ended as numbers overflowed that had grown large, of samples that the initial weights bear."""
    o, samples = run.overflow, run.samples.get(run.history.bad_since or 0, [])
    if o is None or o.phase not in ("forward", "between", "loss") or o.undefined or o.ordinary or fits_wider(run):
        return False
    return run.history.applied > 0 and bool(samples) and all(math.isfinite(s.loss) and not s.unlike for s in samples)


@rule("spike", position=240)
@dataclass
class Spike(Rule):
    """Single gradient norms are far outside of the usual range, by a robust z-score."""

    aside = True
    needs = ("long",)
    causes = ("a batch of outliers", "a steep region of the loss")
    fixes = ("nothing if they are rare; else clip at the usual norm",)
    z: float = 10.0
    """Distance from the median in robust standard deviations (1.4826 times the median absolute deviation)."""
    factor: float = 5.0
    """The norm must also be at least this many times the median."""
    rare: float = 0.1
    """Part of all updates above which these are no single ones: the norm has grown."""

    def begin(self) -> None:
        self.first: tuple[int, float, float, int] | None = None
        self.largest = (0.0, 0)
        self.without = 0  # attempts before there were enough to compare with, skipped ones included
        self.reached = 0.0  # the largest of the others since then
        self.count = 0

    def observe(self, line: dict[str, Any], layers: dict[str, list[Any]] | None, history: History) -> None:
        norm, recent = line["grad/norm"], history.norms.values
        if len(recent) < 2 * history.window:
            self.without = line["attempt"]
            return
        if not math.isfinite(norm):
            return
        usual, lately = history.norms.median, [*recent][-history.window - 1 : -1]
        far = norm > self.factor * max(usual, median(sorted(lately)))  # of the latest, too: else the norm has grown
        if far and usual > 0 and norm - usual > self.z * history.norms.spread:
            self.count += 1
            self.first = self.first or (line["attempt"], norm, usual, len(recent))
            self.largest = max(self.largest, (norm, line["attempt"]))
        elif self.first:
            self.reached = max(self.reached, norm)

    def find(self, run: FinishedRun) -> Finding | None:
        if self.first is None or self.count > self.rare * run.history.attempts:
            return None
        if self.reached >= self.largest[0]:  # the norm has grown since
            return None
        at, norm, usual, known = self.first
        many = f"{self.count} gradient norms are" if self.count > 1 else "one gradient norm is"
        sentence = f"after the first {self.without} updates {many} far outside of the usual range, "
        sentence += f"{'the first ' * (self.count > 1)}at update {at}: "
        sentence += f"{norm:.3g} where the latest {known} have a median of {usual:.3g}{run.samples_of(at)}"
        largest, where = self.largest
        sentence += f"; the largest, at update {where}, is {largest:.3g}" * (where > at)
        return self.found("info", sentence, at, count=self.count, norm=largest)

    def suspects(self, run: FinishedRun) -> list[int]:
        return [self.first[0]] if self.first else []


@rule("zero_gradient", position=160)
@dataclass
class ZeroGradient(Rule):
    """The gradient is exactly zero although the loss is not."""

    causes = ("all units of a layer died", f"{CUTS} on the way", "the loss does not depend on the weights")
    fixes = ("look for dead units", "check that the loss depends on the weights", "lower the learning rate")
    updates: int = 20
    """Updates in a row whose gradient is exactly zero."""

    def begin(self) -> None:
        self.zeros = self.at = self.all = 0

    def observe(self, line: dict[str, Any], layers: dict[str, list[Any]] | None, history: History) -> None:
        if line["grad/norm"] != 0:
            self.zeros = 0
            return
        self.all += 1
        self.at = self.at if self.zeros else line["attempt"]
        self.zeros += 1

    def find(self, run: FinishedRun) -> Finding | None:
        h = run.history
        if self.zeros < self.updates or not abs(h.loss_late) > 1e-6 * abs(h.loss_first) or h.broken:  # see nan_loss
            return None
        severity = "info" if run.trains or run.decayed else "critical"
        since = f"from update {self.at} on"
        if self.all > self.zeros:
            since = f"in {self.all} of {h.attempts} updates, without a break {since}"
        found = self.found(severity, f"the gradient is exactly zero {since}", self.at)
        if run.inspection is not None and (run.inspection.flushed or 0.0) >= UnderflowFP16.fraction:
            found.causes = ["numbers of it that are not zero in fp32 are zero in fp16"]
        elif self.at > 1:  # it was there
            found.causes = found.causes[:1]
        elif zero := self.weights_of_zero(run):
            found.causes = [f"weights of zero: {several(zero, 5)}", *found.causes * any(h.first_norms)]
            found.evidence["zero"] = zero
        elif run.inspection is not None and passed(run):  # no layer's units are all dead
            found.causes = found.causes[1:]
            found.evidence["cut"] = True
        return found

    @staticmethod
    def weights_of_zero(run: FinishedRun) -> list[str]:
        """Names of the weights, biases aside, that were exactly zero at the first update, where that is known."""
        norms, shapes = run.history.first_norms, (run.header or {}).get("shapes") or []
        if not len(norms) == len(shapes) == len(run.history.names):
            return []
        each = zip(run.history.names, norms, shapes, strict=True)
        return [name for name, norm, shape in each if norm == 0 and len(shape) > 1]
