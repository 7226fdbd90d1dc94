"""Optimizers that PyTorch does not have, as their papers write them."""

from __future__ import annotations

from typing import Any

import torch


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023, algorithm 2: the sign of a mean of gradients."""

    def __init__(self, params: Any, lr: float, betas: tuple[float, float], weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            lr, (beta1, beta2) = group["lr"], group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                mean = state["exp_avg"]
                p.mul_(1 - lr * group["weight_decay"])
                p.sub_(lr * mean.lerp(p.grad, 1 - beta1).sign_())
                mean.lerp_(p.grad, 1 - beta2)


class StableAdamW(torch.optim.Optimizer):
    """Wortsman et al. 2023, algorithm 2: AdamW, of which a tensor's step is shorter where its gradients have grown."""

    def __init__(self, params: Any, lr: float, betas: tuple[float, float], eps: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            eps = group["eps"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state |= {
                        "step": torch.zeros(()),
                        "exp_avg": torch.zeros_like(p),
                        "exp_avg_sq": torch.zeros_like(p),
                    }
                state["step"] += 1
                t, mean, square = state["step"].item(), state["exp_avg"], state["exp_avg_sq"]
                # 1 at first: no bias to correct
                first, second = ((1 - beta) / (1 - beta**t) for beta in group["betas"])
                mean.lerp_(p.grad, first)
                square.mul_(1 - second).addcmul_(p.grad, p.grad, value=second)
                size = (p.grad.square() / square.clamp(min=eps**2)).mean().sqrt()
                lr = group["lr"] / size.clamp(min=1.0)
                p.mul_(1 - lr * group["weight_decay"]).sub_(lr * mean / (square.sqrt() + eps))
