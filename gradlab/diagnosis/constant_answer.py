"""The best constant answer to a loss that is only known as a function: found by minimising it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

STEPS = 30
FLAT = 0.1
"""Gradient at the end over that of the beginning, below which the minimum counts as found."""


def constant_answer(
    loss: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
    shape: Sequence[int],
    batches: Sequence[torch.Tensor],
) -> float | None:
    """Mean loss of the output, the same for every sample, that has the lowest one found by L-BFGS from near zero.

    loss: (outputs, targets) -> their sum and number. shape: of one sample's output. batches: targets, (B, ...) each.
    None where no minimum is found, as where there is none, or the loss cannot be differentiated.
    """
    draw = torch.Generator().manual_seed(0)
    answer = 0.01 * torch.randn(1, *shape, generator=draw).to(batches[0].device)
    answer.requires_grad_()
    optimizer = torch.optim.LBFGS([answer], max_iter=STEPS, line_search_fn="strong_wolfe")
    steep: list[float] = []

    def mean() -> torch.Tensor:
        optimizer.zero_grad()
        parts = [loss(answer.expand(len(targets), *shape), targets) for targets in batches]
        total = torch.stack([part for part, _ in parts]).sum() / torch.stack([count for _, count in parts]).sum()
        total.backward()
        assert answer.grad is not None
        steep.append(answer.grad.norm().item())
        return total

    try:
        with torch.enable_grad():
            optimizer.step(mean)  # type: ignore[no-untyped-call]
            lowest = mean().item()
    except (RuntimeError, ValueError, TypeError, IndexError, AssertionError):
        return None
    found = math.isfinite(lowest) and all(map(math.isfinite, steep)) and steep[-1] <= FLAT * steep[0] + 1e-6
    return lowest if found else None
