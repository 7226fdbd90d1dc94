"""Rules over the outputs of modules, from the look at the model when the run has ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradlab.diagnosis.finding import Finding
from gradlab.diagnosis.rules.rule import Rule, Run

if TYPE_CHECKING:
    from gradlab.diagnosis.inspection import Seen


@dataclass
class Units(Rule):
    """Most units of some layer are of no use, and the model does not learn."""

    needs = ("look",)
    fraction: float = 0.9
    """Fraction of a layer's units."""

    def value(self, module: Seen) -> float | None:
        raise NotImplementedError

    def worst(self, run: Run) -> tuple[float, Seen] | None:
        """The first module in the order of execution whose fraction is over the threshold."""
        modules = run.look.modules if run.look else []
        bad = [(value, m) for m in modules if (value := self.value(m)) is not None and value >= self.fraction]
        return bad[0] if bad else None


@dataclass
class DeadUnits(Units):
    """Units that are zero for every sample, so that no gradient passes through them."""

    code = "dead_units"
    causes = ("biases pushed far below zero by a large update", "the learning rate is too high", "the initialisation")

    def value(self, module: Seen) -> float | None:
        return module.dead

    def find(self, run: Run) -> Finding | None:
        if (worst := self.worst(run)) is None:
            return None
        value, module = worst
        says = f"{value:.0%} of the units of {module.name} ({module.kind}) are zero for every sample"
        return self.found("critical" if run.stuck else "info", says, None, module=module.name, fraction=value)


@dataclass
class SaturatedUnits(Units):
    """Outputs where the activation is flat, so that little gradient passes."""

    code = "saturated_units"
    causes = ("initial weights that are too large", "inputs that are not normalised", "the learning rate is too high")

    def value(self, module: Seen) -> float | None:
        return module.saturated

    def find(self, run: Run) -> Finding | None:
        if (worst := self.worst(run)) is None:
            return None
        value, module = worst
        says = f"{value:.0%} of the outputs of {module.name} ({module.kind}) are where its slope is under a twentieth"
        return self.found("critical" if run.stuck else "info", says, None, module=module.name, fraction=value)
