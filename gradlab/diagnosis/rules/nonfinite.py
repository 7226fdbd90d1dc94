"""Rules over non-finite numbers: where in the failing update the first of them is."""

from __future__ import annotations

from dataclasses import dataclass

from gradlab.diagnosis.finding import Finding
from gradlab.diagnosis.finished_run import FinishedRun
from gradlab.diagnosis.rules.rule import Rule, rule


@dataclass
class NonFinite(Rule):
    """Base: the run ended in non-finite updates."""

    def phase(self, run: FinishedRun) -> str | None:
        """Where the first non-finite number is; None where the update was not replayed."""
        return run.overflow.phase if run.overflow is not None else None

    def ended(self, run: FinishedRun) -> bool:
        return run.status == "failed" or run.dead

    def unable(self, run: FinishedRun) -> str | None:
        return "the failing update was not replayed" if self.ended(run) and run.overflow is None else None


@rule("nan_input", position=10)
@dataclass
class NaNInput(NonFinite):
    """The inputs or targets hold NaN or infinities."""

    causes = ("missing values", "a division by a zero spread in the preparation of the data")
    fixes = ("drop or repair the samples that are not finite", "add an eps to the spread that the data are divided by")

    def find(self, run: FinishedRun) -> Finding | None:
        if (phase := self.phase(run)) not in ("inputs", "targets"):
            return None
        return self.found(
            "critical", f"the {phase} of update {run.history.bad_since} are not finite", run.history.bad_since
        )


@rule("nan_parameter", position=20)
@dataclass
class NaNParameter(NonFinite):
    """The weights, or buffers, are not finite before the failing update: an earlier update broke them."""

    causes = ("an update with a gradient that was not finite was applied", "weights that overflowed")
    fixes = ("lower the learning rate", "clip the gradient norm", "skip updates whose gradient is not finite")

    def find(self, run: FinishedRun) -> Finding | None:
        if self.phase(run) not in ("parameters", "buffers") or run.overflow is None:
            return None
        return self.found("critical", str(run.overflow), run.history.bad_since, parameter=run.overflow.module)


@rule("nan_loss", position=30)
@dataclass
class NaNLoss(NonFinite):
    """The loss is not finite although the model's outputs are finite and of ordinary size."""

    causes = ("log of zero", "a division by zero", "exp of a large number", "targets that are not finite")
    fixes = ("use the stable form of the loss: from logits, with log1p, softplus or a clamp", "lower the learning rate")

    def find(self, run: FinishedRun) -> Finding | None:
        o = run.overflow
        if o is None or o.phase != "loss" or not o.moderate:
            return None
        sentence = "the loss is not finite before the backward pass, although the outputs are"
        seen = {"outputs": o.outputs, "targets": o.targets}
        ranges = {name: [r.min, r.max] for name, r in seen.items() if r is not None and r.min is not None}
        listed = "; ".join(f"{name} {low:.3g} to {high:.3g}" for name, (low, high) in ranges.items())
        return self.found("critical", f"{sentence} ({listed})" if listed else sentence, run.history.bad_since, **ranges)


@rule("nan_gradient", position=80)
@dataclass
class NaNGradient(NonFinite):
    """The loss is finite and its gradient is not; or updates fail for an unknown reason."""

    fallback = True
    causes = ("sqrt or norm at zero", "0 times infinity in a masked branch", "an overflow in the backward pass")
    fixes = ("add an eps inside of square roots and norms", "mask inputs, not outputs", "lower the learning rate")

    def find(self, run: FinishedRun) -> Finding | None:
        if not self.ended(run):
            return None
        h = run.history
        applied = f"the loss is not finite since update {h.bad_since}, and these updates were still applied"
        skipped = f"the last {h.streak} updates were skipped: their gradients are not finite"
        sentence = run.error or (skipped if h.streak else applied)
        if run.overflow is not None:
            sentence = f"{sentence}; {run.overflow}"
        return self.found("critical", sentence, run.history.bad_since)

    def unable(self, run: FinishedRun) -> str | None:
        return None
