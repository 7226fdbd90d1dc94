"""The classes of a map: how a run ended, in one word. Plain values in, a name out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class OutcomeClass:
    """A class: its name, what it means, its colour (Okabe and Ito's, for color-blind readers too) and its letter."""

    name: str
    means: str
    colour: str
    letter: str

    @property
    def light(self) -> bool:
        """Whether its letter is white."""
        red, green, blue = (int(self.colour[i : i + 2], 16) for i in (1, 3, 5))
        return 0.3 * red + 0.59 * green + 0.11 * blue < 128


OUTCOMES = (
    OutcomeClass("learnt", "better than at its beginning and than a constant answer, by 5% each", "#0072B2", "L"),
    OutcomeClass("spiked", "learnt, through spikes of the loss", "#56B4E9", "P"),
    OutcomeClass("unlearnt", "came to its end, and has not learnt", "#B8B8B8", "U"),
    OutcomeClass("diverged", "the loss ended far above its beginning, or lost what was learnt", "#E69F00", "D"),
    OutcomeClass(
        "exploded", "the gradient exploded, the loss has no floor, or something was not finite", "#D55E00", "X"
    ),
    OutcomeClass("collapsed", "the fp16 loss scale fell to nothing, or fp16 overflowed", "#CC79A7", "C"),
    OutcomeClass("too_short", "has too few updates to be judged", "#EFE6D5", "S"),
    OutcomeClass("stopped", "was stopped before its end", "#F0E442", "I"),
    OutcomeClass("error", "gave no measurement", "#4D4D4D", "E"),
)
"""From the best to the worst; repeats of one point count as their worst."""
NAMES = tuple(o.name for o in OUTCOMES)
LEARNT = ("learnt", "spiked")
STABLE = ("learnt", "spiked", "unlearnt")
"""Classes of runs that came to their end and stayed stable."""
UNENDED = ("stopped", "error")
"""Classes of runs without a result that counts: resuming their sweep runs them again."""
UNJUDGED = ("too_short", *UNENDED)
"""Neither stable nor unstable."""
HEALTHY = ("healthy", "small_but_healthy")
"""Verdicts of a run with which nothing is wrong: whatever asks for `healthy` takes each of them."""
CLASS_OF_VERDICT = {
    "diverged": "diverged",
    "unbounded_loss": "exploded",
    "exploding": "exploded",
    "nan_input": "exploded",
    "nan_parameter": "exploded",
    "nan_loss": "exploded",
    "nan_forward": "exploded",
    "nan_gradient": "exploded",
    "scale_collapse": "collapsed",
    "scale_livelock": "collapsed",
    "overflow_fp16": "collapsed",
}
"""The class of a run whose verdict alone decides it; of other verdicts the finding says it, or the loss decides."""


def learns(diagnosis: dict[str, Any]) -> bool:
    """Whether a run has learnt, by its diagnosis.json (see `gradlab.diagnosis.finished_run` for what that means)."""
    return bool(diagnosis.get("learns"))


def finding_class(finding: dict[str, Any]) -> str:
    """The class of an unstable run by a finding of its diagnosis.json; empty where that does not make it unstable."""
    if finding.get("severity") != "critical":
        return ""
    return CLASS_OF_VERDICT.get(finding["code"]) or str(finding.get("lost") or "")


def outcome_class(verdict: str | None, status: str | None, learnt: bool, last: float, of_finding: str = "") -> str:
    """The class of a run from its verdict, how it ended (completed, failed, given_up, interrupted), whether its
    diagnosis has it as learning, and its last loss. of_finding: `finding_class` of the verdict's own finding."""
    if verdict is None or status is None:
        return "error"
    if verdict in CLASS_OF_VERDICT:
        return CLASS_OF_VERDICT[verdict]
    if of_finding in NAMES and status != "failed":
        return of_finding
    if status == "interrupted":
        return "stopped"
    if status == "given_up":
        return "diverged"
    if status == "failed" or not math.isfinite(last):
        return "exploded"
    if verdict == "too_short":
        return "too_short"
    if verdict == "loss_spike_recovered":
        return "spiked"
    return "learnt" if learnt else "unlearnt"


def worst(names: list[str]) -> str:
    """The worst class of several repeats."""
    return NAMES[max(map(NAMES.index, names))]


def share(names: list[str], wanted: tuple[str, ...] = STABLE) -> float:
    """The share of the wanted classes among those that were judged; NaN where none was."""
    judged = [name for name in names if name not in UNJUDGED]
    return sum(name in wanted for name in judged) / len(judged) if judged else math.nan
