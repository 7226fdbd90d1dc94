"""Rules over clipping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gradlab.diagnosis.finding import Finding
from gradlab.diagnosis.history import History, Samples
from gradlab.diagnosis.rules import Rule, Run


@dataclass
class Clipping(Rule):
    """Base: how often clipping acts, and how hard."""

    needs = ("long",)

    def begin(self) -> None:
        self.coefficients = Samples()
        self.acted = self.applied = 0

    def observe(self, line: dict[str, Any], layers: dict[str, list[Any]] | None, history: History) -> None:
        if line["update/skipped"]:
            return
        coefficient = line.get("clip/coefficient", 1.0)
        self.applied += 1
        self.acted += coefficient < 1
        self.coefficients.add(coefficient)

    @property
    def fraction(self) -> float:
        return self.acted / max(self.applied, 1)

    def unable(self, run: Run) -> str | None:
        return super().unable(run) if run.clips else "nothing is clipped"


@dataclass
class Overclipped(Clipping):
    """Nearly every update is clipped, to a small part of itself, and the model does not learn."""

    code = "overclipped"
    causes = ("max_norm is far below the usual norm of the gradient",)
    often: float = 0.95
    """Fraction of updates that are clipped."""
    coefficient: float = 0.1
    """What clipping usually leaves of the gradient."""

    def find(self, run: Run) -> Finding | None:
        left = self.coefficients.median
        if not run.clips or self.fraction < self.often or not left < self.coefficient:
            return None
        says = f"{self.fraction:.0%} of the updates are clipped, usually to {left:.2g} of the gradient"
        evidence = {"fraction": self.fraction, "coefficient": left, "usual_norm": run.history.usual_norm}
        return self.found("critical" if run.stuck and run.status == "completed" else "info", says, 1, **evidence)


@dataclass
class ClipIdle(Clipping):
    """Clipping never acts."""

    code = "clip_idle"
    causes = ("max_norm is far above the usual norm of the gradient",)

    def find(self, run: Run) -> Finding | None:
        if not run.clips or self.acted or not self.applied:
            return None
        largest = run.history.largest
        return self.found("info", f"clipping never acted: the largest norm was {largest:.3g}", None, largest=largest)
