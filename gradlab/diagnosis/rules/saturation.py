"""Rules over the outputs of modules, from the inspection of the final model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradlab.diagnosis.finding import Finding
from gradlab.diagnosis.finished_run import FinishedRun
from gradlab.diagnosis.rules.rule import Rule, rule

if TYPE_CHECKING:
    from gradlab.diagnosis.inspection import ModuleOutput


@dataclass
class Units(Rule):
    """Base: most units of some layer pass no gradient, and the model does not learn."""

    needs = ("inspection",)
    fraction: float = 0.9
    """Fraction of a layer's units."""

    def value(self, module: ModuleOutput) -> float | None:
        raise NotImplementedError

    def worst(self, run: FinishedRun) -> tuple[float, ModuleOutput] | None:
        """The first module in the order of execution whose fraction is over the threshold."""
        modules = run.inspection.modules if run.inspection else []
        bad = [(value, m) for m in modules if (value := self.value(m)) is not None and value >= self.fraction]
        return bad[0] if bad else None


@rule("dead_units", position=150)
@dataclass
class DeadUnits(Units):
    """Most units of a layer are zero for every sample, so that no gradient passes through them."""

    causes = ("biases pushed far below zero by a large update", "the learning rate is too high", "the initialisation")
    fixes = ("use GELU or a leaky ReLU", "lower the learning rate", "use He initialisation")

    def value(self, module: ModuleOutput) -> float | None:
        return module.dead

    def find(self, run: FinishedRun) -> Finding | None:
        if (worst := self.worst(run)) is None:
            return None
        value, module = worst
        sentence = f"{value:.0%} of the units of {module.name} ({module.kind}) are zero for every sample"
        return self.found("critical" if run.stuck else "info", sentence, None, module=module.name, fraction=value)


@rule("saturated_units", position=110)
@dataclass
class SaturatedUnits(Units):
    """Most outputs of a layer are where the activation is flat, so that little gradient passes."""

    causes = ("initial weights that are too large", "inputs that are not normalised", "the learning rate is too high")
    fixes = ("use smaller initial weights", "use ReLU or GELU", "normalise layers", "lower the learning rate")

    def value(self, module: ModuleOutput) -> float | None:
        return module.saturated

    def find(self, run: FinishedRun) -> Finding | None:
        if (worst := self.worst(run)) is None:
            return None
        value, module = worst
        sentence = f"{value:.0%} of the outputs of {module.name} ({module.kind}) are saturated (slope under 1/20)"
        return self.found("critical" if run.stuck else "info", sentence, None, module=module.name, fraction=value)
