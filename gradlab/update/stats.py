"""What an update takes and what it measures."""

from __future__ import annotations

from typing import NamedTuple

import torch


class MicroBatch(NamedTuple):
    """Samples of one forward and backward pass. In a remainder a rank without samples has one that does not count."""

    inputs: torch.Tensor
    targets: torch.Tensor
    counts: bool = True


class Stats(NamedTuple):
    """What one update measured: () tensors on the device."""

    loss: torch.Tensor
    """Mean over all samples or tokens of the window and all ranks."""
    grad_norm: torch.Tensor
    """L2 norm of the true gradient, before noise and clipping."""
    clip_coefficient: torch.Tensor
    """||clipped|| / ||gradient||."""
    clip_acted: torch.Tensor
    scale: torch.Tensor
    """The loss scale that this update used."""
    next_scale: torch.Tensor
    skipped: torch.Tensor
    empty: torch.Tensor
    """Whether no target of the window counts: it is skipped, and its loss is NaN, a mean of nothing."""
    lr: torch.Tensor
    applied: torch.Tensor
    """Updates applied so far, this one included if it was."""
    terms: torch.Tensor | None = None
    """(K,) means of the terms of the loss, where it has several."""
