"""Rules over a gradient norm that drifts over the whole run."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradlab.diagnosis.finding import Finding
from gradlab.diagnosis.finished_run import FinishedRun
from gradlab.diagnosis.history import History
from gradlab.diagnosis.rules.rule import Rule, rule
from gradlab.diagnosis.rules.saturation import Units
from gradlab.diagnosis.update_sizes import SMALL_UPDATE

if TYPE_CHECKING:
    from gradlab.diagnosis.inspection import ActivationOutput

GROWN = 2.0
"""Norm of the weights at the end over that at the beginning, above which they have grown."""


@dataclass
class Trend(Rule):
    """Base: the norm drifts over the whole run by a large factor, mostly in one direction."""

    aside = True
    needs = ("long",)
    factor: float = 10.0
    """Norm at the end over that at the beginning, or the reverse."""
    order: float = 0.8
    """Rank correlation with time above which it is a trend."""

    def drift(self, history: History) -> tuple[float, float, float]:
        """Rank correlation of the norm with time, and the usual norms of the first and of the last tenth."""
        v = history.norms_of_all.values
        if len(v) < 20:
            return 0.0, math.nan, math.nan
        ranks = {i: rank for rank, i in enumerate(sorted(range(len(v)), key=v.__getitem__))}
        correlation = statistics.correlation(range(len(v)), [ranks[i] for i in range(len(v))])
        return correlation, *history.norm_drift

    @staticmethod
    def course(first: float, last: float) -> str:
        """In words that follow others; what lies between need not rise or fall all the time."""
        return f" over the run: its median is {first:.3g} in the first tenth, and {last:.3g} in the last"


@rule("growing_norm", position=220)
@dataclass
class Growing(Trend):
    """The gradient norm grows over the run by a large factor, and mostly rises."""

    causes = ("the weights grow", "the learning rate is too high")
    fixes = ("watch it: clip the norm, or lower the learning rate, if the loss stops falling",)

    def find(self, run: FinishedRun) -> Finding | None:
        correlation, first, last = self.drift(run.history)
        if not (correlation > self.order and last > self.factor * first):
            return None
        found = self.found("info", f"the gradient norm grows{self.course(first, last)}", first=first, last=last)
        weights, (grow, rate) = run.history.weights, self.causes
        found.causes = [grow] if len(weights) > 1 and weights[-1] > GROWN * weights[0] else []
        if not (run.learns or run.steady or run.history.update_ratios.median < SMALL_UPDATE):  # then it is no matter
            found.causes.append(rate)
        return found


@rule("decaying_norm", position=230)
@dataclass
class Decaying(Trend):
    """The gradient norm decays over the run by a large factor, and mostly falls."""

    causes = ("the loss nears its minimum", "units saturate or die")
    fixes = ("nothing while the loss falls; else look for saturated or dead units",)

    def find(self, run: FinishedRun) -> Finding | None:
        correlation, first, last = self.drift(run.history)
        if not (correlation < -self.order and last < first / self.factor):
            return None
        found = self.found("info", f"the gradient norm decays{self.course(first, last)}", first=first, last=last)
        seen = run.inspection.activations if run.inspection is not None else None
        if run.decayed is not None:
            found.causes = ["weight decay that has taken the weights away"]
        else:
            (nears, units), near = self.causes, run.trains
            are_flat = not near if seen is None else any(Units.fraction <= flat(each) for each in seen)
            found.causes = [nears] * near + [units] * are_flat
        return found


def flat(activation: ActivationOutput) -> float:
    """The share of its units that are dead, or saturated, whichever is larger."""
    return max(activation.dead or 0.0, activation.saturated or 0.0)
