"""Which dimension of an output is that of a layer's units, and how many of them are dead."""

from __future__ import annotations

from typing import NamedTuple

import torch


def channels_first(module: torch.nn.Module) -> bool:
    """Whether a layer's units are in the dimension after the batch's."""
    nn = torch.nn  # not before a configuration was checked
    return isinstance(module, (nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase, nn.GroupNorm))


def places_units(module: torch.nn.Module) -> bool:
    """Whether a module says where its units are; others leave them where they were."""
    nn = torch.nn
    return channels_first(module) or isinstance(module, (nn.Linear, nn.Bilinear, nn.Embedding, nn.RNNBase))


class Layout(NamedTuple):
    """Where a layer's output has its units, how many, and how many dimensions it has."""

    dim: int
    size: int
    dims: int


def layout(module: torch.nn.Module, y: torch.Tensor) -> Layout | None:
    """Where a layer that `places_units` has them; None of a single number a sample."""
    if y.dim() < 2:
        return None
    dim = 1 if channels_first(module) else y.dim() - 1
    return Layout(dim, y.shape[dim], y.dim())


def unit_dim(y: torch.Tensor, before: Layout | None = None) -> int:
    """The dimension of units: that of the layer that this comes from, or where there are as many, if code moved them.

    Where that is not known, it is channels of what has the shape of images, else the last.
    """
    if before is not None:
        same = [before.dim] if y.dim() == before.dims else []
        candidates: list[int] = [*same, *range(1, y.dim())]
        for dim in candidates:
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
