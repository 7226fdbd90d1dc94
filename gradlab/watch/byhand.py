"""Gradients that somebody writes to without a call that is followed."""

from __future__ import annotations

import torch

Kept = tuple[torch.Tensor, torch.Tensor]
"""A small parameter, and its gradient after the latest backward pass."""


def kept(small: torch.Tensor, spread: bool) -> Kept | None:
    """spread: its parts are on several ranks."""
    grad = small.grad
    if grad is None or grad.is_sparse or spread:
        return None
    return small, grad.detach().clone()


def ratio(known: Kept | None) -> float | None:
    """The number below 1 that a gradient was multiplied by since; None where there is no such number."""
    if known is None or (grad := known[0].grad) is None or grad.shape != known[1].shape:
        return None
    before, after = known[1].double(), grad.detach().double()
    found = float((before * after).sum() / before.square().sum())
    return found if 0 < found < 0.999 and torch.allclose(after, found * before, rtol=1e-3, atol=0) else None
