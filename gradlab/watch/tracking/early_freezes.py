"""Parameters that are trained in the first updates, and frozen from then on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

EARLY = 2
"""Updates after which parameters may be frozen on purpose: nobody begins to train them for fewer."""


@dataclass
class EarlyFreezes:
    """Follows the parameters that had a gradient in the first `EARLY` updates, or were frozen after the forward pass of
    one of these: their node passes nothing on then."""

    frozen: list[torch.Tensor] = field(default_factory=list)
    """Those of them that required none at any step since."""
    steps: int = 0
    """Steps since."""

    def at_backward(self, params: set[int], leaves: Sequence[torch.Tensor]) -> None:
        """leaves: what the graph of a loss ends in. params: ids of those of the optimizer."""
        known = params - {id(p) for p in self.frozen}
        self.frozen += [p for p in leaves if id(p) in known and not p.requires_grad]

    def at_step(self, params: Sequence[torch.Tensor], attempts: int) -> None:
        if attempts < EARLY:
            known = {id(p) for p in self.frozen}
            self.frozen += [p for p in params if p.grad is not None and id(p) not in known]
        elif self.frozen:
            self.frozen, self.steps = [p for p in self.frozen if not p.requires_grad], self.steps + 1
