"""Gradients that the loop multiplies itself, without a call that is observed."""

from __future__ import annotations

import torch

Reference = tuple[torch.Tensor, torch.Tensor]
"""A small parameter, and a copy of its gradient after the latest backward pass."""


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
