"""Rules over how far updates move the weights."""

from __future__ import annotations

from dataclasses import dataclass

from gradlab.diagnosis.finding import Finding
from gradlab.diagnosis.finished_run import FinishedRun
from gradlab.diagnosis.rules.rule import Rule, rule
from gradlab.diagnosis.wording import moves, progress


@rule("update_too_large", position=180)
@dataclass
class UpdateTooLarge(Rule):
    """An update changes the weights by a large fraction of them, and the model does not learn.

    Critical where it moved them by more than their norm, and later ones hardly move them: nothing takes that back. A
    warning where the first ones drove the loss up by a factor of ten, whatever is learnt after it.
    """

    needs = ("steps",)
    causes = ("the learning rate is too high", "gradients are not clipped", "there is no warm-up")
    fixes = ("lower the learning rate", "warm the learning rate up")
    ratio: float = 0.1
    """Norm of the update over that of the weights, after the optimizer; usual is 1e-4 to 1e-2."""

    def find(self, run: FinishedRun) -> Finding | None:
        h, usual = run.history, run.history.update_ratios.median
        largest = h.update_ratios.largest
        if not largest > self.ratio:
            return None
        count = h.update_ratios.count
        sentence = moves(usual, largest, count, count + h.from_zero, least=h.bounded_below and count == 1)
        lost = (run.failed or run.stuck) and not run.decayed
        severity = "critical" if run.thrown and run.stuck else "warning" if lost and usual > self.ratio else "info"
        sentence += f", and {progress(run)}" * (severity == "critical")
        if severity == "info" and len(h.undamaged) < len(h.first):
            severity = "warning"
            sentence += f"; the loss went from {h.loss_early:.4g} up to {max(h.first):.4g}"
            sentence += f", and ends at {h.losses.final:.4g}"
        found = self.found(severity, sentence, None, usual=usual, largest=largest)
        found.causes = ["weight decay that has taken the weights away"] if run.decayed else found.causes
        if run.second_moments and h.update_ratios.values[0] == largest:  # Adam's first: as large for any gradient
            found.causes = [cause for cause in found.causes if "clipped" not in cause]
        return found


@rule("updates_lost", position=185)
@dataclass
class UpdatesLost(Rule):
    """Updates are rounded off: they leave most weights bitwise unchanged, though their gradient is not zero.

    Of weights in bf16 or fp16. Stochastic rounding and Kahan summation change few in one update too, but others in
    each: over n updates nearly n times as many. Where updates are lost, the same few change each time. The square root
    of n is between.
    """

    needs = ("steps",)
    causes = ("the weights are in bf16 or fp16, whose next number is further away than an update reaches",)
    fixes = (
        "keep the weights in fp32 and compute in bf16 (autocast), or keep an fp32 copy for the optimizer",
        "round stochastically, or carry what was rounded off (Kahan summation)",
        "raise the learning rate, if it is lower than the usual one",
    )
    share: float = 0.5
    """Share of the weights with a gradient that a usual update leaves as they are."""
    stay: float = 0.75
    """Part of that share that is unchanged from one record to the next, too."""
    apart: int = 5
    """Updates between two records from which this can be told."""

    def find(self, run: FinishedRun) -> Finding | None:
        lost, still = run.history.rounded_off.median, run.history.still.median
        since = run.history.since.median
        if not (since >= self.apart and lost > self.share and still > self.stay * lost):
            return None
        if (1 - still) ** 2 > since * (1 - lost) ** 2:
            return None
        sentence = f"weights are kept in {run.narrow}, which rounds the updates off: usually {lost:.1%} of the weights"
        sentence += " whose gradient is not zero stay bitwise what they are"
        sentence += f", and {still:.1%} over {since:.0f} updates"
        evidence = {"lost": lost, "still": still, "update_ratio": run.history.update_ratios.median}
        found = self.found("critical" if run.stuck else "warning", sentence, None, **evidence)
        found.causes = [cause.replace("bf16 or fp16", run.narrow) for cause in found.causes]
        return found

    def unable(self, run: FinishedRun) -> str | None:
        if (why := super().unable(run)) is not None:
            return why
        if not run.history.rounded_off.count:
            return "no weights are in bf16 or fp16"
        if not run.history.still.count:
            return "the steps were recorded once only"
        return None if run.history.since.median >= self.apart else "the steps were recorded too often"
