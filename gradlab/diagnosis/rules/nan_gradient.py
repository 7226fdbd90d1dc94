"""The rule over a gradient that is not finite, of a loss that is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from gradlab.diagnosis.finding import Finding
from gradlab.diagnosis.finished_run import FinishedRun
from gradlab.diagnosis.history import History
from gradlab.diagnosis.replay.overflow import Overflow
from gradlab.diagnosis.rules.nonfinite import NonFinite
from gradlab.diagnosis.rules.rule import rule


@rule("nan_gradient", position=80)
@dataclass
class NaNGradient(NonFinite):
    """The loss is finite and its gradient is not; or updates fail for an unknown reason."""

    fallback = True
    causes = ("sqrt or norm at zero", "0 times infinity in a masked branch", "an overflow in the backward pass")
    fixes = ("add an eps inside of square roots and norms", "mask inputs, not outputs", "lower the learning rate")

    def begin(self) -> None:
        self.scale, self.finite = 0.0, True  # the loss scale of the first of the latest gradients that are not finite

    def observe(self, line: dict[str, Any], layers: dict[str, list[Any]] | None, history: History) -> None:
        before, self.finite = self.finite, math.isfinite(line["grad/norm"])
        self.scale = line.get("amp/scale", 0.0) if before and not self.finite else self.scale

    def find(self, run: FinishedRun) -> Finding | None:
        h, o = run.history, run.overflow
        if not run.failed or h.empty == h.attempts > 0:
            return None
        if (h.bad_loss and o is None and not h.poisoned) or (
            o is not None and o.phase in ("forward", "between", "loss")
        ):
            return None  # it began in the forward pass
        applied = f"the loss is not finite since update {h.bad_since}, and these updates were still applied"
        skipped = f"the last {h.streak} updates were skipped: their gradients are not finite"
        if h.poisoned:
            applied = (
                f"the gradient of update {h.poisoned_at} is not finite, its loss is, and it was applied: {applied}"
            )
        sentence = run.error or (skipped if h.streak else applied)
        if o is not None:
            sentence = f"{sentence}; {o}"
        alone, samples = self.alone(run)
        began = h.poisoned_at if h.poisoned else h.bad_since
        found = self.found("critical", sentence + alone, began, samples=samples)
        made = o.derivative if o is not None else None
        if any(made in cause.split() for cause in self.causes):
            found.causes = [f"{made} at zero"]
        elif o is not None:
            slope = [f"numbers at which the slope of {o.derivative} is not finite"] if o.derivative else []
            found.causes = slope if o.undefined else self.by_scale(o)
        return found

    def by_scale(self, o: Overflow) -> list[str]:
        """The loss scale, where without it the number that overflowed is within the range of its type."""
        largest, limit = o.output_max or math.inf, o.limit or 0.0
        return [f"a loss scale of {self.scale:.3g} that is too large"] if largest <= limit * self.scale else []

    def unable(self, run: FinishedRun) -> str | None:
        return None
