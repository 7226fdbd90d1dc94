"""Optimizers, and the one way in which an update is applied or skipped."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Optional

import torch

from gradlab.base.option import option, require

if TYPE_CHECKING:
    from torch import Tensor  # at run time it would import what is imported lazily


@dataclass
class OptimizerOption:
    """Base of the options: what all optimizers share."""

    lr: float = 1e-3
    """Learning rate, before the schedule's factor."""
    weight_decay: float = 0.0
    """Weight decay on all parameters."""
    fused: Optional[bool] = None
    """One kernel for all parameters; null: where PyTorch has one (3x faster than foreach, on a CPU too)."""
    foreach: Optional[bool] = None
    """Batched operations where it is not fused; null: PyTorch's own choice."""

    def __post_init__(self) -> None:
        require(0 < self.lr < inf, "lr", self.lr, "> 0 and finite")
        require(0 <= self.weight_decay < inf, "weight_decay", self.weight_decay, ">= 0 and finite")
        require(not (self.fused and self.foreach), "foreach", self.foreach, "false or null where fused=true")

    def build(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer of all parameters that need a gradient, on the device where they are."""
        params = [p for p in parameters if p.requires_grad]
        fused = self.fused
        if fused is None and not self.foreach:
            fused = all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in params)
        # On CUDA the rate is a tensor: the schedule moves it without waiting for the device.
        lr = torch.tensor(self.lr, device=params[0].device) if fused and params[0].is_cuda else self.lr
        shared = {"lr": lr, "weight_decay": self.weight_decay, "fused": fused or None, "foreach": self.foreach}
        return self.make(params, shared)

    def make(self, params: list[torch.nn.Parameter], shared: dict[str, Any]) -> torch.optim.Optimizer:
        raise NotImplementedError

    def decays(self, rates: float, way: float, slope: float) -> float:
        """How many times a run's weight decay alone would divide the weights by e.

        rates: the sum of its learning rates. way: of the sizes of its updates, each over the weights'. slope: the
        usual norm of the gradient over that of the weights.
        """
        return rates * self.weight_decay

    def moments(self) -> tuple[str, ...]:
        """Names of the state per element, as in torch.optim; it starts at zero."""
        raise NotImplementedError

    def move_(self, params: Tensor, grads: Tensor, moments: list[Tensor], lr: Tensor, applied: Tensor) -> None:
        """Many runs' update at once, by the rule of `make`'s optimizer; fields may be (L,) tensors.

        params, grads, moments: (L, N), changed in place, the gradients too. lr: (L,) float64. applied: (L,) int64, the
        updates applied before this one.
        """
        raise NotImplementedError

    def decay_(self, params: Tensor, grads: Tensor) -> None:
        """Add the gradient of half the squared norm of the weights, times weight_decay."""
        if isinstance(self.weight_decay, torch.Tensor) or self.weight_decay:
            grads.add_(params * column(self.weight_decay))


@option("optimizer", "sgd")
@dataclass
class SGD(OptimizerOption):
    """Stochastic gradient descent with momentum."""

    lr: float = 0.1
    momentum: float = 0.9
    """Momentum; 0 for none."""
    nesterov: bool = False
    """Nesterov's momentum."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.momentum < 1, "momentum", self.momentum, "in [0, 1)")
        require(self.momentum > 0 or not self.nesterov, "nesterov", self.nesterov, "false where momentum=0")

    def make(self, params: list[torch.nn.Parameter], shared: dict[str, Any]) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(params, momentum=self.momentum, nesterov=self.nesterov, **shared)
        if shared["fused"] and self.momentum:
            # The fused kernel leaves the first buffer unwritten when it skips its first update, and reads it at the
            # next: from zeros every update, the first too, is buffer = momentum * buffer + gradient.
            for p in params:
                optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)
        return optimizer

    def decays(self, rates: float, way: float, slope: float) -> float:
        """Momentum adds it up."""
        return rates * self.weight_decay / (1 - self.momentum)

    def moments(self) -> tuple[str, ...]:
        return ("momentum_buffer",) if isinstance(self.momentum, torch.Tensor) or self.momentum else ()

    def move_(self, params: Tensor, grads: Tensor, moments: list[Tensor], lr: Tensor, applied: Tensor) -> None:
        self.decay_(params, grads)
        step = grads
        for buffer in moments:
            buffer.mul_(column(self.momentum)).add_(grads)
            step = grads.add_(buffer * column(self.momentum)) if self.nesterov else buffer
        params.addcmul_(step, column(-lr))


@dataclass
class AdamOption(OptimizerOption):
    """What Adam and AdamW share."""

    beta1: float = 0.9
    """Decay of the mean of gradients."""
    beta2: float = 0.999
    """Decay of the mean of squared gradients."""
    eps: float = 1e-8
    """Added to the denominator."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.beta1 < 1, "beta1", self.beta1, "in [0, 1)")
        require(0 <= self.beta2 < 1, "beta2", self.beta2, "in [0, 1)")
        require(self.eps > 0, "eps", self.eps, "> 0")

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

    def decays(self, rates: float, way: float, slope: float) -> float:
        """Its part of the gradient is its part of the update, whose size does not depend on either."""
        return way * self.weight_decay / (self.weight_decay + slope) if self.weight_decay else 0.0

    def make(self, params: list[torch.nn.Parameter], shared: dict[str, Any]) -> torch.optim.Optimizer:
        return torch.optim.Adam(params, betas=(self.beta1, self.beta2), eps=self.eps, **shared)


@option("optimizer", "adamw")
@dataclass
class AdamW(AdamOption):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

    weight_decay: float = 0.01

    def make(self, params: list[torch.nn.Parameter], shared: dict[str, Any]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(params, betas=(self.beta1, self.beta2), eps=self.eps, **shared)

    def decay_(self, params: Tensor, grads: Tensor) -> None:
        """Decoupled from the gradient: see `move_`."""

    def move_(self, params: Tensor, grads: Tensor, moments: list[Tensor], lr: Tensor, applied: Tensor) -> None:
        params.mul_(column(1.0 - lr * self.weight_decay))
        super().move_(params, grads, moments, lr, applied)


def column(value: Any) -> Any:
    """One value per run, (L,) -> (L, 1) float32, for matrices with a row per run; a plain number is shared by all."""
    return value.float().unsqueeze(1) if isinstance(value, torch.Tensor) else value


def skips_in_kernel(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer's kernel reads `found_inf` itself, so that the host does not wait for it."""
    return bool(optimizer.defaults.get("fused")) and optimizer.param_groups[0]["params"][0].is_cuda


def step_unless_(optimizer: torch.optim.Optimizer, found_inf: torch.Tensor, in_kernel: bool) -> None:
    """Apply the update unless found_inf, () float32, is 1; on the host that waits for the device."""
    if in_kernel:
        optimizer.found_inf, optimizer.grad_scale = found_inf, None  # type: ignore[attr-defined]
        try:
            optimizer.step()
        finally:
            del optimizer.found_inf, optimizer.grad_scale  # type: ignore[attr-defined]
    elif not found_inf.item():
        optimizer.step()


def set_lr_(optimizer: torch.optim.Optimizer, lr: torch.Tensor) -> None:
    """Set the rate of the next update from a () tensor."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].copy_(lr)
        else:
            group["lr"] = lr.item()
