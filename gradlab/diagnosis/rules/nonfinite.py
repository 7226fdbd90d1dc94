"""Rules over non-finite numbers: where the first of them is, in the forward or the backward pass, and what made it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gradlab.base.visible import several
from gradlab.diagnosis.finding import Finding
from gradlab.diagnosis.finished_run import WHOLE_SET, FinishedRun
from gradlab.diagnosis.replay.overflow import MODERATE, Overflow
from gradlab.diagnosis.rules.rule import Rule, rule

LARGEST_FP16 = 65504.0
SAMPLES_PER_FAULTY = 5
"""Single samples are at fault only where an update has this many samples for each that fails by itself."""


@dataclass
class NonFinite(Rule):
    """Base: the run ended in non-finite updates."""

    def bad(self, run: FinishedRun) -> int:
        """The first update of the failure, or the first one that is not finite; 0 where there is none."""
        h = run.history
        return (h.bad_since if run.failed else h.skipped_bad_since or h.applied_bad_since) or 0

    def suspects(self, run: FinishedRun) -> list[int]:
        return [self.bad(run)] if self.bad(run) else []

    def alone(self, run: FinishedRun) -> tuple[str, list[int]]:
        """Samples that are not finite by themselves, with weights that nothing has damaged: in words, and all."""
        mine, others = ([s.index for s in run.samples.get(a, []) if s.fails] for a in (self.bad(run), WHOLE_SET))
        if not mine:
            return "", []
        if (every := len(run.samples[self.bad(run)])) < SAMPLES_PER_FAULTY * len(
            mine
        ):  # it is no fault of single samples
            measured = f"{every} samples that were measured"
            return f"; {len(mine)} of its {measured} are not finite by themselves, with the initial weights", []
        found = sorted({*mine, *others})
        many = f"samples {several(found, 5)} are" if len(found) > 1 else f"sample {found[0]} is"
        return f"; {many} not finite by {'themselves' if len(found) > 1 else 'itself'}, with the initial weights", found

    def unable(self, run: FinishedRun) -> str | None:
        return "the failing update was not replayed" if run.failed and run.overflow is None else None


@rule("nan_input", position=10)
@dataclass
class NaNInput(NonFinite):
    """The inputs or targets hold NaN or infinities."""

    causes = ("missing values", "a division by a zero spread in the preparation of the data")
    fixes = ("drop or repair the samples that are not finite", "add an eps to the spread that the data are divided by")

    def find(self, run: FinishedRun) -> Finding | None:
        o = run.overflow
        if o is None or o.phase not in ("inputs", "targets"):
            return None
        sentence = f"the {o.phase} of update {run.history.bad_since} are not finite"
        sentence += f": sample{'s' * (len(o.samples) > 1)} {several(o.samples, 5)}" if o.samples else ""
        return self.found("critical", sentence, run.history.bad_since, samples=o.samples)


@rule("nan_parameter", position=20)
@dataclass
class NaNParameter(NonFinite):
    """The weights, or buffers, are not finite before the failing update: an earlier update broke them."""

    causes = ("an update with a gradient that was not finite was applied", "weights that overflowed")
    fixes = ("lower the learning rate", "clip the gradient norm", "skip updates whose gradient is not finite")

    def find(self, run: FinishedRun) -> Finding | None:
        o = run.overflow
        if o is None or o.phase not in ("parameters", "buffers"):
            return None
        return self.found("critical", str(o), run.history.bad_since, parameter=o.module)


@rule("empty_window", position=25)
@dataclass
class EmptyWindow(Rule):
    """No target counts in some windows, such as one of padding alone: they were skipped, as no update."""

    causes = ("samples whose every target is ignored", "truncation that cuts the targets off")
    fixes = ("drop samples without a target", "use a larger window")
    share: float = 0.5
    """Share of the windows above which it is more than an accident."""

    def find(self, run: FinishedRun) -> Finding | None:
        h = run.history
        if not h.empty:
            return None
        whole = "windows hold" if h.empty > 1 else "window holds"
        sentence = f"{h.empty} of {h.attempts} {whole} no target that counts, and made no update"
        severity = "critical" if h.empty == h.attempts else "warning" if h.empty > self.share * h.attempts else "info"
        return self.found(severity, sentence, h.first_empty, windows=h.empty)


@rule("nan_loss", position=30)
@dataclass
class NaNLoss(NonFinite):
    """The loss is not finite although the model's outputs are finite and of ordinary size.

    Also where the update was applied because its gradient is finite, which is then not that of a loss: log of a
    negative number has one, and a mean of nothing has zeros.
    """

    causes = (
        "log of zero or of a negative number",
        "a division by zero",
        "exp of a large number",
        "targets that are not finite",
    )
    fixes = ("use the stable form of the loss: from logits, with log1p, softplus or a clamp", "lower the learning rate")
    often: float = 0.05
    """Share of updates that were skipped for it above which it is more than routine."""

    def find(self, run: FinishedRun) -> Finding | None:
        o = run.overflow
        if o is None:
            return self.unexplained(run)
        if o.phase != "loss" or not o.moderate:
            return None
        sentence = "the loss is not finite before the backward pass, although the outputs are"
        sentence += f": {o.failure} in {o.place}" * bool(o.undefined or (o.operation and not o.rounded))
        seen = {"outputs": o.outputs, "targets": o.targets}
        ranges = {name: [r.min, r.max] for name, r in seen.items() if r is not None and r.min is not None}
        seen_in = "; ".join(f"{name} {low:.3g} to {high:.3g}" for name, (low, high) in ranges.items())
        sentence = f"in the evaluation, {sentence}" if o.evaluation else sentence
        sentence, (alone, samples) = f"{sentence} ({seen_in})" if seen_in else sentence, self.alone(run)
        sentence += f"; {self.applied(run)}" * bool(run.history.applied_bad)
        began = run.history.applied_bad_since or run.history.bad_since
        found = self.found("critical", sentence + alone, began, samples=samples, **ranges)
        word = {"reciprocal": "division", "div": "division"}.get(o.place, o.place.rstrip("0123456789"))
        named = [c for c in self.causes if word and word in c.split()]
        possible = [c for c in self.causes if "targets" not in c or o.targets is None or o.targets.nonfinite]
        overflows = [f"{word} of a large number"] if word and not o.undefined else []
        if o.failure.startswith("log of"):  # which of both it was is known
            named = [o.failure.replace("log of 0", "log of zero")]
        found.causes = named or overflows or ([] if word else possible)
        return found

    @staticmethod
    def applied(run: FinishedRun) -> str:
        """How many updates with a loss that is not finite were applied, and since when."""
        h = run.history
        many = f"{h.applied_bad} updates have" if h.applied_bad > 1 else "an update has"
        zero = ": exactly zero" if h.applied_bad == h.applied_zero else ""
        were, their = ("were", "their gradients are") if h.applied_bad > 1 else ("was", "its gradient is")
        sentence = f"{many} a loss that is not finite, and {were} applied, since {their} finite{zero}"
        return f"{sentence}; the first is update {h.applied_bad_since}"

    def unexplained(self, run: FinishedRun) -> Finding | None:
        """What the lines of metrics alone say."""
        h, (alone, samples) = run.history, self.alone(run)
        if run.failed:
            if not h.bad_loss or h.poisoned:
                return None
            what = "the last losses are not finite" if h.broken else f"the last {h.streak} updates were skipped"
            sentence = run.error or f"{what}, since update {h.bad_since}: not for a gradient alone, but for the loss"
            return self.found("critical", sentence + alone, h.bad_since, samples=samples)
        if h.applied_bad:
            severity, told = "warning" if run.learns else "critical", self.applied(run) + alone
            return self.found(severity, told, h.applied_bad_since, bad_updates=h.applied_bad, samples=samples)
        if h.skipped_bad:
            sentence = f"{h.skipped_bad} of {h.attempts} updates were skipped because their loss is not finite"
            severity = "warning" if h.skipped_bad > self.often * h.attempts else "info"
            found = self.found(
                severity, sentence + alone, h.skipped_bad_since, bad_updates=h.skipped_bad, samples=samples
            )
            if run.fp16_forward and not samples:
                found.causes = [f"a number beyond fp16's largest, {LARGEST_FP16:g}, in the forward pass"]
            return found
        return None

    def yields(self, run: FinishedRun) -> bool:
        return run.overflow is None and run.failed

    def unable(self, run: FinishedRun) -> str | None:
        return None


@rule("nan_forward", position=35)
@dataclass
class NaNForward(NonFinite):
    """A number of the model's forward pass is not finite, for another reason than that it passes fp16's range.

    An operation without a finite result for its operands (0/0, the root of a negative number, a softmax whose entries
    are all masked) is a cause of its own, and so is one that overflows from operands of ordinary size, such as exp.
    Another overflow of fp32 or bf16, and an operation on numbers that had grown large before, are reported where no
    other rule found a cause.
    """

    causes = (
        "a denominator that is zero",
        "a log or a root of what should be positive",
        "a row that is masked throughout",
    )
    fixes = ("add an eps inside of roots, logs and denominators", "leave one entry of every row unmasked")

    def find(self, run: FinishedRun) -> Finding | None:
        o = run.overflow
        if o is None or o.phase not in ("forward", "between", "loss") or (o.phase != "loss" and fits_wider(run)):
            return None
        if o.phase == "loss" and o.moderate:
            return None  # the loss function is the cause
        began = None if o.evaluation else run.history.bad_since
        evidence = {"module": o.module, "operation": o.operation, "failure": o.failure}
        alone, samples = self.alone(run)
        found = self.found("critical", str(o) + alone, began, samples=samples, **evidence)
        found.causes = self.undefined(o) if o.undefined else self.too_large(run)
        return found

    def undefined(self, o: Overflow) -> list[str]:
        """What the operation was given that has no finite result; nothing of infinities that were there before."""
        divided, positive, masked = self.causes
        if "softmax" in o.place:
            return [masked]
        return [divided] if o.by_zero else [positive] if o.failure.startswith(("log of", "sqrt of")) else []

    @staticmethod
    def too_large(run: FinishedRun) -> list[str]:
        """What was measured to be too large at the beginning, where no update had made anything large."""
        large = [name for name, is_ordinary in run.ordinary.items() if not is_ordinary]
        initial = [name for name in large if run.sizes or "weights" not in name]
        return [f"{' or '.join(initial)} are too large"] if initial and not run.history.applied else []

    def yields(self, run: FinishedRun) -> bool:
        o = run.overflow
        if o is None:
            return False
        if o.undefined:
            return o.phase == "loss" or (o.input_max or 0.0) > MODERATE
        return not o.ordinary or any(s.unlike for samples in run.samples.values() for s in samples)


def fits_wider(run: FinishedRun) -> bool:
    """Whether a wider type holds what fp16 does not."""
    o = run.overflow
    if o is None or not run.fp16_forward or o.undefined or not o.output_max or (o.limit or 0.0) > LARGEST_FP16:
        return False
    return math.isfinite(o.output_max)
