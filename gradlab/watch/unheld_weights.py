"""Weights of the models that get gradients, and that no optimizer holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import nn

from gradlab.watch.optimizer_tracker import OptimizerTracker

EVERY = 4
"""One of so many backward passes is looked at."""
LEAST = 4
"""Of these, as many must reach a weight."""
UPDATES = 10
"""Updates of other weights of the model."""
KEPT = 64
"""Elements of a weight that are kept, to see whether something else moves it: writes to `.data` are not counted."""

Before = list[tuple[torch.Tensor, "torch.Tensor | None", int]]
"""(weight, its gradient, version counter of that) before a backward pass."""


class UnheldWeights:
    """Weights that are not frozen, reached by backward passes, and moved by nothing."""

    def __init__(self, models: Sequence[nn.Module], trackers: list[OptimizerTracker]) -> None:
        self.models, self.trackers = models, trackers
        self.weights: list[torch.Tensor] | None = None
        """Those that no optimizer holds; None if they are to be found again."""
        self.reached: dict[torch.Tensor, int] = {}
        """Weight -> passes that reached it."""
        self.first: dict[torch.Tensor, tuple[int, torch.Tensor]] = {}
        """Weight -> version counter and elements when it was reached first."""

    def before(self, num_backwards: int) -> Before:
        if num_backwards % EVERY:
            return []
        if self.weights is None:
            self.weights = self.find()
        return [(p, p.grad, -1 if p.grad is None else p.grad._version) for p in self.weights if p.requires_grad]

    def after(self, before: Before) -> None:
        for p, old, version in before:
            if p.grad is not None and (p.grad is not old or p.grad._version != version):
                self.reached[p] = self.reached.get(p, 0) + 1
                if p not in self.first:
                    self.first[p] = p._version, elements(p).clone()

    def find(self) -> list[torch.Tensor]:
        held = ids(p for t in self.trackers for group in t.optimizer.param_groups for p in group["params"])
        everything = {id(p): p for m in self.models for p in m.parameters()}
        return [p for key, p in everything.items() if key not in held and not hasattr(p, "to_local")]

    def at_end(self) -> Iterator[tuple[OptimizerTracker, list[torch.Tensor]]]:
        """For each model of which other weights are stepped: the optimizer of these, and the weights without one."""
        found = {id(p): p for p in self.find() if self.reached.get(p, 0) >= LEAST and p.requires_grad and self.still(p)}
        for model in self.models:
            own = ids(model.parameters())
            tracker = next((t for t in self.trackers if t.attempts >= UPDATES and t.ids & own), None)
            if tracker is not None and (weights := [found.pop(key) for key in list(found) if key in own]):
                yield tracker, weights

    def still(self, p: torch.Tensor) -> bool:
        """Whether a weight is what it was."""
        version, before = self.first[p]
        return p._version == version and torch.equal(elements(p), before)


def elements(p: torch.Tensor) -> torch.Tensor:
    """The first few of the first row."""
    row = p.detach()
    while row.dim() > 1:
        row = row[0]
    return row.reshape(-1)[:KEPT]


def ids(params: Iterable[torch.Tensor]) -> set[int]:
    return {id(p) for p in params}
