"""Two windows of a training loop under each combination of its flags."""

from __future__ import annotations

from functools import cached_property

from gradlab.audit.trace.replay import Step, cases
from gradlab.audit.trace.training_loop import Unit

FLAGS = 7
"""Every combination of so many is followed."""


def runs(unit: Unit) -> list[Run]:
    """Each combination of flags, over two windows."""
    flags = [a for a in unit.atoms if a not in unit.boundary and not unit.timed(a)]
    limit = FLAGS if unit.window <= 4 else 4
    return [Run(unit, values) for values in cases(flags, limit)]


class Run:
    """Two windows of a unit under one combination of its flags."""

    def __init__(self, unit: Unit, values: dict[str, bool]):
        self.unit, self.values = unit, values
        self.steps: list[Step] = []
        self.status = ""
        iterations = 2 * unit.window if unit.window > 1 else 2
        for k in range(iterations + (1 if unit.boundary else 0)):
            found, self.status = unit.iteration(k, unit.truth(values, k))
            self.steps += found
            if self.status in ("break", "raise") or (self.status == "return" and unit.loop is not None):
                break

    @cached_property
    def accumulating(self) -> bool:
        """Whether micro-batches add up in this case: a flag may say that each is an update of its own."""
        backwards = self.of("backward")
        if not self.of("step"):
            return False
        if self.unit.boundary and any(not self.ends(step.k) for step in backwards):
            return True
        return any(id(step.event) in self.unit.in_window for step in backwards)

    def partial(self, step: Step) -> bool:
        """Whether a step comes before all micro-batches of its window have been added up."""
        loop = self.unit.in_window.get(id(step.event))
        if loop is not None:  # not where a condition may pick one of its turns
            keys = {atom.key for atom in self.unit.atoms if atom.birth > loop.birth}
            return not any(key in guard for guard, _ in step.guards for key in keys)
        return bool(self.unit.boundary) and not self.ends(step.k)

    def before(self, step: Step) -> list[Step]:
        return self.steps[: self.steps.index(step)]

    def of(self, *kinds: str) -> list[Step]:
        return [step for step in self.steps if step.kind in kinds]

    def ends(self, k: int) -> bool:
        return any(step.kind == "step" and step.k == k for step in self.steps)

    def unused(self, backward: Step) -> bool:
        """Whether a function zeroes gradients both before and after, with no step between: it looks at them alone."""
        if self.unit.loop is not None or len(self.unit.optimizers()) > 1:
            return False
        around = [s for s in self.of("backward", "zero", "step") if s.k == backward.k]
        at = around.index(backward)
        return [s.kind for s in around[max(at - 1, 0) : at + 2]] == ["zero", "backward", "zero"]
