"""The best constant answer to a loss that is only known as a function: found by minimising it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradlab.data.tree import leaves, mapped, samples

STEPS = 30
FLAT = 0.1
"""Gradient at the end over that of the beginning, below which the minimum counts as found."""
SETTLED = 0.01
"""Fall of the last quarter over that of all, below which it does, too: a hinge has a slope on both sides of it."""

APART = 0.1
"""Part of their losses by which constant answers differ where it matters which one is given."""


def constant_answer(
    loss: Callable[[Any, Any], tuple[torch.Tensor, torch.Tensor]],
    like: Any,
    batches: Sequence[Any],
    others: Sequence[Any] = (),
) -> float | None:
    """Mean loss of the output, the same for every sample, that has the lowest one found by L-BFGS from near zero.

    loss: (outputs, targets) -> their sum and number. like: outputs, (B, ...) each. batches: targets, (B, ...) each.
    others: more of them, on which it is not sought; the loss is the mean over all.
    None where no minimum is found, as where there is none, or the loss cannot be differentiated.
    """
    draw = torch.Generator().manual_seed(0)
    answer = [(0.01 * torch.randn(1, *t.shape[1:], generator=draw)).to(t.device) for t in leaves(like)]
    for part in answer:
        part.requires_grad_()
    began = [part.detach().clone() for part in answer]
    optimizer = torch.optim.LBFGS(answer, max_iter=STEPS, line_search_fn="strong_wolfe")
    steep, means = list[float](), list[float]()

    def to_all(number: int) -> Any:
        each = iter(answer)
        return mapped(lambda t: next(each).expand(number, *t.shape[1:]), like)

    def over(some: Sequence[Any]) -> torch.Tensor:
        parts = [loss(to_all(samples(targets)), targets) for targets in some]
        return torch.stack([part for part, _ in parts]).sum() / torch.stack([count for _, count in parts]).sum()

    def mean() -> torch.Tensor:
        optimizer.zero_grad()
        total = over(batches)
        total.backward()
        steep.append(math.hypot(*(a.grad.norm().item() for a in answer if a.grad is not None)))
        means.append(total.item())
        return total

    try:
        with torch.enable_grad():
            optimizer.step(mean)  # type: ignore[no-untyped-call]
            lowest = mean().item()
        with torch.no_grad():
            whole = lowest
            if others:
                whole = over([*batches, *others]).item()
                # where few samples have most of the loss, what is best for some may be worse for all than the start
                for part, start in zip(answer, began, strict=True):
                    part.copy_(start)
                whole = min(whole, over([*batches, *others]).item())
    except (RuntimeError, ValueError, TypeError, IndexError):
        return None
    settled = min(means[: 3 * len(means) // 4]) - lowest < SETTLED * (means[0] - lowest)
    found = steep[-1] <= FLAT * steep[0] + 1e-6 or settled
    return whole if found and all(map(math.isfinite, [*steep, *means, whole])) else None


def chosen(loss: Callable[[Any, Any], tuple[torch.Tensor, torch.Tensor]], like: Any, targets: Any, best: float) -> bool:
    """Whether the loss of a constant answer depends on which it is: that by triplets is the margin for each.

    best: loss of the best one.
    """
    draw = torch.Generator().manual_seed(0)
    answer = mapped(lambda t: torch.randn(1, *t.shape[1:], generator=draw).to(t.device).expand_as(t), like)

    def of(size: float) -> float:
        total, count = loss(mapped(lambda t: size * t, answer), targets)
        return (total / count).item()

    losses = [best, *map(of, (0.01, 1.0, 3.0))]
    return max(losses) - min(losses) > APART * max(map(abs, losses))


def depends(loss: Callable[[Any, Any], tuple[torch.Tensor, torch.Tensor]], like: Any, targets: Any) -> bool:
    """Whether a loss changes with the targets: of outputs drawn at random, and those of the sample before."""
    draw = torch.Generator().manual_seed(0)
    outputs = mapped(lambda t: torch.randn(t.shape, generator=draw).to(t.device), like)
    (own, _), (other, _) = loss(outputs, targets), loss(outputs, mapped(lambda t: t.roll(1, 0), targets))
    return bool((own - other).abs() > 1e-6 * own.abs())
