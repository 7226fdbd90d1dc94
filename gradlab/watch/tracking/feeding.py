"""What backward passes give to the gradients of an optimizer, from step to step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass
class Feeding:
    """Counts steps that nothing was given to."""

    fed: bool = False
    """Whether any backward pass has reached the parameters, or they had a gradient at any step."""
    empty_steps: int | None = 0
    """Steps at which no parameter had a gradient; None once one had."""
    starved: int = 0
    """Steps before the first that was fed, with a backward pass since the one before."""
    unreached: int = 0
    """The latest steps, each after backward passes that added nothing to the gradients, which earlier ones had fed."""
    num_seen: int = 0
    """Backward passes of the loop up to the latest step."""
    num_own_seen: int = 0
    """Those of them that added to the gradients."""

    def at_step(self, params: Sequence[torch.Tensor], num_own: int, num_backwards: int, written: bool) -> None:
        """num_own, num_backwards: passes that added to the gradients, and all. written: whether something else has, or
        does: a backward pass that is running counts when it is over."""
        if num_own > self.num_own_seen or written:
            self.unreached, self.num_own_seen = 0, num_own
        elif self.fed and num_backwards > self.num_seen:
            self.unreached += 1
        if not self.fed:
            self.fed = num_own > 0 or any(p.grad is not None for p in params)
        if not self.fed and num_backwards > self.num_seen:
            self.starved += 1
        self.num_seen = num_backwards
        if self.empty_steps is not None:
            self.empty_steps = None if any(p.grad is not None for p in params) else self.empty_steps + 1
