"""Which dimension of an output is that of a layer's units, and how many of them are dead."""

from __future__ import annotations

from typing import NamedTuple

import torch

CHANNELS_FIRST = (
    torch.nn.modules.conv._ConvNd,
    torch.nn.modules.batchnorm._NormBase,
    torch.nn.GroupNorm,
)
UNITS_LAST = (torch.nn.Linear, torch.nn.Bilinear, torch.nn.Embedding, torch.nn.RNNBase)
LAYERS = CHANNELS_FIRST + UNITS_LAST
"""Those that say where their units are; others leave them where they were."""


class Layout(NamedTuple):
    """Where a layer's output has its units, how many, and how many dimensions it has."""

    dim: int
    size: int
    dims: int


def layout(module: torch.nn.Module, y: torch.Tensor) -> Layout | None:
    """Where one of LAYERS puts its units; None of a single number a sample."""
    if y.dim() < 2:
        return None
    dim = 1 if isinstance(module, CHANNELS_FIRST) else y.dim() - 1
    return Layout(dim, y.shape[dim], y.dim())


def unit_dim(y: torch.Tensor, before: Layout | None = None) -> int:
    """The dimension of units: that of the layer that this comes from, or where there are as many, if code moved them.

    Where that is not known, it is channels of what has the shape of images, else the last.
    """
    if before is not None:
        same = [before.dim] if y.dim() == before.dims else []
        for dim in (*same, *range(1, y.dim())):
            if y.shape[dim] == before.size:
                return dim
        if same:
            return before.dim
    return 1 if y.dim() == 4 else y.dim() - 1


def dead_fraction(y: torch.Tensor, before: Layout | None = None) -> torch.Tensor:
    """() share of units that are exactly zero at every sample and position. before: see `unit_dim`.

    The extremes tell: a CPU takes ten times as long to compare every element with zero.
    """
    unit = unit_dim(y, before)
    if unit == 1 and y.dim() > 2:
        rows = y.flatten(2)
        low, high = rows.amin(2).amin(0), rows.amax(2).amax(0)
    else:
        rows = y.movedim(unit, -1).flatten(0, -2)
        low, high = rows.amin(0), rows.amax(0)
    return ((low == 0) & (high == 0)).double().mean()
