"""The dimension of an output that indexes a layer's units, and the fraction of dead units."""

from __future__ import annotations

from typing import NamedTuple

import torch


def channels_first(module: torch.nn.Module) -> bool:
    """Whether a layer's units are in the dimension after the batch's."""
    nn = torch.nn  # loads PyTorch: not before the configuration was checked
    return isinstance(module, (nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase, nn.GroupNorm))


def places_units(module: torch.nn.Module) -> bool:
    """Whether a module decides which dimension is that of units; others do not change it."""
    nn = torch.nn
    return channels_first(module) or isinstance(module, (nn.Linear, nn.Bilinear, nn.Embedding, nn.RNNBase))


class Layout(NamedTuple):
    """The dimension of a layer's units, their number, and the number of dimensions of its output."""

    dim: int
    size: int
    dims: int


def layout(module: torch.nn.Module, y: torch.Tensor) -> Layout | None:
    """The layout of a layer that `places_units`; None for a single number per sample."""
    if y.dim() < 2:
        return None
    dim = 1 if channels_first(module) else y.dim() - 1
    return Layout(dim, y.shape[dim], y.dim())


def unit_dim(y: torch.Tensor, before: Layout | None = None) -> int:
    """The dimension of units: that of the layer before, or the one of the same size, if the code moved it.

    Where the layer is not known: channels of what has the shape of images, else the last.
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

    By minimum and maximum: comparing every element with zero takes ten times as long on a CPU.
    """
    unit = unit_dim(y, before)
    if unit == 1 and y.dim() > 2:
        rows = y.flatten(2)
        low, high = rows.amin(2).amin(0), rows.amax(2).amax(0)
    else:
        rows = y.movedim(unit, -1).flatten(0, -2)
        low, high = rows.amin(0), rows.amax(0)
    return ((low == 0) & (high == 0)).double().mean()
