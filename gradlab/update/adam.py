"""`optimizer=adam` and `optimizer=adamw`, and what optimizers of two means share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gradlab.base.option import above_zero, option, require
from gradlab.update.optimizer import OptimizerOption, column

if TYPE_CHECKING:
    from torch import Tensor  # at run time it would import what is imported lazily


@dataclass
class BetasOption(OptimizerOption):
    """What optimizers of two means share."""

    elementwise = True
    beta1: float = 0.9
    """Decay of the mean of gradients."""
    beta2: float = 0.999
    """Decay of the mean of squared gradients."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.beta1 < 1, "beta1", self.beta1, "in [0, 1)")
        require(0 <= self.beta2 < 1, "beta2", self.beta2, "in [0, 1)")

    def checked(self, settings: dict[str, Any]) -> dict[str, Any]:
        made = super().checked(settings)
        betas = made.pop("beta1", self.beta1), made.pop("beta2", self.beta2)
        return made | {"betas": betas}


@dataclass
class AdamOption(BetasOption):
    """What Adam and AdamW share."""

    eps: float = 1e-8
    """Added to the denominator."""

    def __post_init__(self) -> None:
        super().__post_init__()
        above_zero(self, "eps")

    def moments(self) -> tuple[str, ...]:
        return "exp_avg", "exp_avg_sq"

    def move_(self, params: Tensor, grads: Tensor, moments: list[Tensor], lr: Tensor, applied: Tensor) -> None:
        self.decay_(params, grads)
        mean, square = moments
        mean.lerp_(grads, torch.as_tensor(column(1.0 - self.beta1), dtype=mean.dtype, device=mean.device))
        square.mul_(column(self.beta2)).addcmul_(grads, grads * column(1.0 - self.beta2))
        first, second = (1.0 - beta ** (applied.double() + 1) for beta in (self.beta1, self.beta2))  # (L,) float64
        step = torch.sqrt(square, out=grads).mul_(column(second.rsqrt())).add_(column(self.eps))
        params.addcmul_(torch.div(mean, step, out=grads), column(-lr / first))


@option("optimizer", "adam")
@dataclass
class Adam(AdamOption):
    """Adam (Kingma and Ba 2015)."""

    def decays(self, lr_sum: float, path_length: float, grad_ratio: float) -> float:
        """The decay's share of the gradient is its share of the update, whose size depends on neither."""
        return path_length * self.weight_decay / (self.weight_decay + grad_ratio) if self.weight_decay else 0.0

    def make(self, params: Any, shared: dict[str, Any]) -> torch.optim.Optimizer:
        return torch.optim.Adam(params, betas=(self.beta1, self.beta2), eps=self.eps, **shared)


@option("optimizer", "adamw")
@dataclass
class AdamW(AdamOption):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

    weight_decay: float = 0.01

    def make(self, params: Any, shared: dict[str, Any]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(params, betas=(self.beta1, self.beta2), eps=self.eps, **shared)

    def decay_(self, params: Tensor, grads: Tensor) -> None:
        """Decoupled from the gradient: see `move_`."""

    def move_(self, params: Tensor, grads: Tensor, moments: list[Tensor], lr: Tensor, applied: Tensor) -> None:
        params.mul_(column(1.0 - lr * self.weight_decay))
        super().move_(params, grads, moments, lr, applied)


def unbounding_betas(o: OptimizerOption) -> tuple[float, float] | None:
    """Adam's, where the mean of gradients outlives that of their squares so far that a step may be of any size.

    A gradient has decayed to beta1^n in the one and to beta2^n in the other, whose root divides the step.
    """
    return (o.beta1, o.beta2) if isinstance(o, Adam | AdamW) and o.beta1 > o.beta2**0.5 else None
