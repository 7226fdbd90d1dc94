"""Gradients that the loop writes to itself, without a call that is observed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

MAX_ZERO_CHECKS = 3
"""Times that gradients are read to see whether they were zeroed: reading waits for the device."""

Reference = tuple[torch.Tensor, torch.Tensor]
"""A small parameter, and a copy of its gradient after the latest backward pass."""


@dataclass
class ManualWrites:
    """Of one optimizer."""

    since_step: bool = False
    """Whether the gradients were written to since the last step."""
    ever: bool = False
    """Whether they ever were, other than to zero them."""
    by_value: bool = False
    """Whether a call that clips by value is running, or was the last that wrote to them."""
    reduced: bool = False
    """Whether the loop has summed them over ranks since the last step."""
    factors: list[float] = field(default_factory=list)
    """Factors that it has multiplied all of them by since the last step."""
    reference: Reference | None = None
    zero_checks: int = 0
    zeroed: bool = True
    """Result of the latest check of whether written gradients are zeros."""

    def note(self, refilled: bool) -> None:
        """They were written to. refilled: whether they hold a backward pass that no optimizer has used."""
        self.since_step = self.ever = True
        if refilled and len(self.factors) < 2 and (factor := manual_factor(self.reference)) is not None:
            self.factors.append(factor)

    def are_zeros(self, sample: Sequence[torch.Tensor]) -> bool:
        """Whether gradients that were written to are zeros."""
        if self.zero_checks < MAX_ZERO_CHECKS:
            self.zero_checks += 1
            grads = [p.grad for p in sample if p.grad is not None]
            self.zeroed = not any(bool(g.any()) for g in grads[-2:])
        return self.zeroed

    def forget(self) -> None:
        """The optimizer has stepped."""
        self.since_step = self.reduced = False
        self.factors = []


def reference(parameter: torch.Tensor, sharded: bool) -> Reference | None:
    """Copy the gradient of a small parameter. sharded: its elements lie on several ranks, and nothing is copied."""
    grad = parameter.grad
    if grad is None or grad.is_sparse or sharded:
        return None
    return parameter, grad.detach().clone()


def manual_factor(known: Reference | None) -> float | None:
    """The factor below 1 by which the gradient was multiplied since; None if there is no such factor."""
    if known is None or (grad := known[0].grad) is None or grad.shape != known[1].shape:
        return None
    before, after = known[1].double(), grad.detach().double()
    factor = float((before * after).sum() / before.square().sum())
    return factor if 0 < factor < 0.999 and torch.allclose(after, factor * before, rtol=1e-3, atol=0) else None
