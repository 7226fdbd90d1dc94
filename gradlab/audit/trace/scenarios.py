"""Two windows of a training loop replayed under each combination of its flags."""

from __future__ import annotations

from functools import cached_property

from gradlab.audit.trace.replay import Guards, Occurrence, cases
from gradlab.audit.trace.training_loop import TrainingLoop

FLAGS = 7
"""With up to this many flags every combination is replayed."""


def scenarios(loop: TrainingLoop) -> list[Scenario]:
    """Each combination of flags, over two windows."""
    limit = FLAGS if loop.window <= 4 else 4
    return [Scenario(loop, values) for values in cases(loop.open_atoms(), limit)]


class Scenario:
    """What happens in two windows of a training loop under one combination of its flags."""

    def __init__(self, loop: TrainingLoop, values: dict[str, bool]):
        self.loop, self.values = loop, values
        self.steps: list[Occurrence] = []
        self.chosen: dict[tuple[str, ...], list[Occurrence]] = {}  # the steps of some kinds
        self.updates: dict[tuple[int, int], list[Occurrence]] = {}  # of an optimizer, by iteration and its id
        iterations = 2 * loop.window if loop.window > 1 else 2
        for k in range(iterations + (1 if loop.boundary else 0)):
            found, status = loop.iteration(k, loop.truth(values, k))
            self.steps += found
            if status in ("break", "raise") or (status == "return" and loop.statement is not None):
                break

    @cached_property
    def accumulating(self) -> bool:
        """Whether micro-batches add up here: a flag may make each an update of its own."""
        backwards = self.of("backward")
        if not self.of("step"):
            return False
        if self.loop.boundary and any(not self.ends(step.k) for step in backwards):
            return True
        return any(id(step.event) in self.loop.in_window for step in backwards)

    def partial(self, step: Occurrence) -> bool:
        """Whether something happens before all micro-batches of its window have been added up."""
        window = self.loop.in_window.get(id(step.event))
        if window is not None:  # not where a condition may pick one of its iterations
            keys = {atom.key for atom in self.loop.atoms if atom.birth > window.birth} - self.loop.of_each_parameter
            own = self.own_guards(step) | {guard for guard in step.guards if "index+" in guard[0]}
            return not any(key in guard for guard, _ in own for key in keys)
        return bool(self.loop.boundary) and not self.ends(step.k)

    @cached_property
    def places(self) -> dict[int, int]:
        """The place of each step, by its id."""
        return {id(step): i for i, step in enumerate(self.steps)}

    def before(self, step: Occurrence) -> list[Occurrence]:
        return self.steps[: self.places[id(step)]]

    def after(self, step: Occurrence) -> list[Occurrence]:
        return self.steps[self.places[id(step)] + 1 :]

    def of(self, *kinds: str) -> list[Occurrence]:
        if kinds not in self.chosen:
            self.chosen[kinds] = [step for step in self.steps if step.kind in kinds]
        return self.chosen[kinds]

    def own_guards(self, step: Occurrence) -> Guards:
        """The conditions that an event has beyond those of the backward pass of its iteration.

        A batch that is passed over as a whole, `if len(x) < size: continue`, says nothing of what happens to others.
        """
        if step.kind == "backward":
            return step.guards
        passes = [s.guards for s in self.of("backward") if s.k == step.k and s.repeat == step.repeat]
        return step.guards - frozenset.intersection(*passes) if passes else step.guards

    def ends(self, k: int) -> bool:
        """Whether iteration k has a step."""
        return any(step.kind == "step" and step.k == k for step in self.steps)

    def unused(self, backward: Occurrence) -> bool:
        """Whether a function zeroes gradients both before and after, with no step between: it only looks at them."""
        if self.loop.statement is not None or len(self.loop.optimizers()) > 1:
            return False
        around = [s for s in self.of("backward", "zero", "step") if s.k == backward.k]
        at = around.index(backward)
        return [s.kind for s in around[max(at - 1, 0) : at + 2]] == ["zero", "backward", "zero"]
