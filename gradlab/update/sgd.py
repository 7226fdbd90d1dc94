"""`optimizer=sgd`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gradlab.base.option import option, require
from gradlab.update.optimizer import OptimizerOption, column

if TYPE_CHECKING:
    from torch import Tensor  # at run time it would import what is imported lazily


@option("optimizer", "sgd")
@dataclass
class SGD(OptimizerOption):
    """Stochastic gradient descent with momentum."""

    elementwise = True
    lr: float = 0.1
    momentum: float = 0.9
    """Momentum; 0 for none."""
    nesterov: bool = False
    """Nesterov's momentum."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.momentum < 1, "momentum", self.momentum, "in [0, 1)")
        require(self.momentum > 0 or not self.nesterov, "nesterov", self.nesterov, "false where momentum=0")

    def make(self, params: Any, shared: dict[str, Any]) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(params, momentum=self.momentum, nesterov=self.nesterov, **shared)
        begin_momentum(optimizer)
        return optimizer

    def decays(self, lr_sum: float, path_length: float, grad_ratio: float) -> float:
        """Momentum adds it up."""
        return lr_sum * self.weight_decay / (1 - self.momentum)

    def moments(self) -> tuple[str, ...]:
        return ("momentum_buffer",) if isinstance(self.momentum, torch.Tensor) or self.momentum else ()

    def move_(self, params: Tensor, grads: Tensor, moments: list[Tensor], lr: Tensor, applied: Tensor) -> None:
        self.decay_(params, grads)
        step = grads
        for buffer in moments:
            buffer.mul_(column(self.momentum)).add_(grads)
            step = grads.add_(buffer * column(self.momentum)) if self.nesterov else buffer
        params.addcmul_(step, column(-lr))


def begin_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Begin SGD's momentum with zeros where its kernel is fused.

    That leaves the first buffer unwritten when it skips its first update, and reads it at the next: from zeros every
    update, the first too, is buffer = momentum * buffer + gradient.
    """
    for group in optimizer.param_groups if isinstance(optimizer, torch.optim.SGD) else ():
        for p in group["params"] if group["fused"] and group["momentum"] else ():
            optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)
