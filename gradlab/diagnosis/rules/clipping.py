"""Rules over clipping."""

from __future__ import annotations

from dataclasses import dataclass

from gradlab.diagnosis.finding import Finding
from gradlab.diagnosis.finished_run import FinishedRun
from gradlab.diagnosis.rules.rule import Rule, rule
from gradlab.diagnosis.update_sizes import SMALL_UPDATE
from gradlab.diagnosis.wording import percent


@dataclass
class Clipping(Rule):
    """Base: rules for runs that clip."""

    needs = ("long",)

    def unable(self, run: FinishedRun) -> str | None:
        return super().unable(run) if run.clips else "nothing is clipped"


@rule("overclipped", position=120)
@dataclass
class Overclipped(Clipping):
    """Nearly every gradient is clipped to a small part of itself, and the model does not learn.

    It is information where updates are of ordinary size all the same, as under Adam or at a rate that allows for it.
    """

    causes = ("the limit of clipping is far below the usual gradient",)
    fixes = ("raise the limit to the usual gradient",)
    often: float = 0.95
    """Fraction of updates that are clipped."""
    coefficient: float = 0.1
    """Median clip coefficient below which too little of the gradient is left."""

    def find(self, run: FinishedRun) -> Finding | None:
        h = run.history
        left, fraction = h.coefficients.median, h.clipped / max(h.applied, 1)
        if not run.clips or fraction < self.often or not left < self.coefficient:
            return None
        updates = "applied updates" if h.skipped else "updates"
        sentence = f"{percent(fraction)} of the {updates} are clipped, usually to {left:.2g} of the gradient"
        evidence = {"fraction": fraction, "coefficient": left, "usual_norm": h.usual_norm}
        blamed = run.stuck and run.status == "completed" and not h.update_ratios.median >= SMALL_UPDATE
        return self.found("critical" if blamed else "info", sentence, 1, **evidence)


@rule("clip_idle", position=250)
@dataclass
class ClipIdle(Clipping):
    """Clipping never acts."""

    aside = True
    fixes = ("nothing: clipping is an insurance; lower its limit if it is to act",)

    def find(self, run: FinishedRun) -> Finding | None:
        if not run.clips or run.history.clipped or not (run.history.applied and run.history.largest):
            return None
        largest = run.history.largest
        acted = "clipping never acted: the largest norm was"
        if run.history.skipped:
            acted = "clipping never acted in an update that was applied: the largest finite norm was"
        return self.found("info", f"{acted} {largest:.3g}", None, largest=largest)
