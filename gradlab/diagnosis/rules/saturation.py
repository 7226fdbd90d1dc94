"""Rules over the outputs of activations, from the inspection of the final model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradlab.diagnosis.finding import Finding
from gradlab.diagnosis.finished_run import WILD, FinishedRun
from gradlab.diagnosis.rules.not_learning import NotLearning
from gradlab.diagnosis.rules.rule import Rule, rule
from gradlab.diagnosis.wording import percent
from gradlab.update.layers import late_to_early_ratio

if TYPE_CHECKING:
    from gradlab.diagnosis.inspection import ActivationOutput


GONE = 10.0
"""Norm of the weights over that of the initial ones, which are then of no matter."""


@dataclass
class Units(Rule):
    """Base: most units of some layer pass no gradient, and the model does not learn, or little."""

    needs = ("inspection",)
    fraction: float = 0.9
    """Fraction of a layer's units."""
    little: float = 0.25
    """Part of the loss of a constant answer that is left, above which it is a warning in a model that learns."""
    fewer: float = 10.0
    """Late layers' gradient over early ones' at the end, over that at first, from which on it was lost in training."""

    def value(self, module: ActivationOutput) -> float | None:
        raise NotImplementedError

    def worst(self, run: FinishedRun) -> tuple[float, ActivationOutput] | None:
        """The call with the largest fraction over the threshold; of equal ones the first to be executed.

        Not of units that are given the same for every sample: what was lost was lost before (see `not_learning`).
        """
        modules = [m for m in run.inspection.activations if not m.same] if run.inspection else []
        bad = [(value, m) for m in modules if (value := self.value(m)) is not None and value >= self.fraction]
        return max(bad, key=lambda each: each[0]) if bad else None

    def by_updates(self, run: FinishedRun) -> bool:
        """Whether early layers had far more of the gradient at the first record than at the end."""
        first, last = run.history.first_layers, run.history.layers
        return len(last) > 1 and late_to_early_ratio(last) > self.fewer * late_to_early_ratio(first)

    def at_ends(self, run: FinishedRun, value: float, module: ActivationOutput) -> str:
        samples = run.inspection.samples if run.inspection else 0
        every = f"every one of {samples} samples" if samples else "every sample"
        return f"{percent(value)} of the units of {module.where} are {module.ends} for {every}"

    def of(self, run: FinishedRun, value: float, module: ActivationOutput, sentence: str) -> Finding:
        evidence = {"module": module.name, "fraction": value, "operation": module.operation, "kind": module.kind}
        if run.long and not (run.beats_constant_anywhere or run.decayed):
            return self.found("critical", sentence, None, **evidence)
        share, where = run.remaining_share
        if not (run.long and share > self.little):
            return self.found("info", sentence, None, **evidence)
        sentence += f", and {percent(share)} of the loss of the best constant answer is left {where}"
        return self.found("warning", sentence, None, **evidence, left=share)


@rule("dead_units", position=150)
@dataclass
class DeadUnits(Units):
    """Most units of a layer are zero for every sample, so that no gradient passes through them.

    By operation and call, whichever module it is in; of one that is flat at two ends, such as ReLU6, both count.
    """

    causes = (
        "biases far below zero, by a large update or from the beginning",
        "the learning rate is too high",
        "the initialisation",
    )
    fixes = ("use GELU or a leaky ReLU", "lower the learning rate", "use He initialisation")

    large: float = 0.01
    """Norm of an update over that of the weights from which on the learning rate may have turned units off."""

    def value(self, module: ActivationOutput) -> float | None:
        return module.dead

    def find(self, run: FinishedRun) -> Finding | None:
        if (worst := self.worst(run)) is None:
            return None
        found, largest = self.of(run, *worst, self.at_ends(run, *worst)), run.history.update_ratios.largest
        biases, rate, start = self.causes
        if largest > self.large and self.by_updates(run):
            found.causes = [rate, biases.replace(" or from the beginning", "")]
        elif largest > self.large:
            found.causes = [rate, biases, start]
        elif math.isfinite(largest):
            found.causes = [biases.replace("by a large update or ", ""), start]
        return found


@rule("saturated_units", position=110)
@dataclass
class SaturatedUnits(Units):
    """Most outputs of a layer are where the activation is flat, so that little gradient passes."""

    causes = ("initial weights that are too large", "inputs that are not normalised", "the learning rate is too high")
    fixes = ("use smaller initial weights", "use ReLU or GELU", "normalise layers", "lower the learning rate")

    large: float = 0.01
    """Norm of an update over that of the weights from which on the learning rate may have saturated units."""

    def value(self, module: ActivationOutput) -> float | None:
        return module.saturated

    def find(self, run: FinishedRun) -> Finding | None:
        if (worst := self.worst(run)) is None:
            return None
        value, module = worst
        steep = f"{percent(value)} of the outputs of {module.where} are saturated (slope under 1/20)"
        found = self.of(run, value, module, steep if module.dead is None else self.at_ends(run, value, module))
        weights, inputs, rate = self.causes
        known = {weights: run.ordinary["the initial weights"], inputs: run.ordinary["the inputs"]}
        known[rate] = run.history.update_ratios.largest <= self.large
        grown = run.history.weights[-1:] > [GONE * weight for weight in run.history.weights[:1]]
        known[weights] |= run.history.update_ratios.largest > 1 or grown  # then those that it began with are gone
        if not known[rate] and self.by_updates(run):
            known[weights] = known[inputs] = True
        found.causes = [cause for cause in self.causes if not known[cause]]
        if run.inspection and run.inspection.activations[-1] is module and run.out_of_reach:
            found.causes = [run.out_of_reach]  # at any rate
            found.evidence["target_size"] = run.target_size
        if not found.causes and not run.input_size >= WILD and run.times_constant > NotLearning.far:
            found.severity = "info"  # large outputs are what it learns, and on its way to them (see not_learning)
        return found
