"""Norms by layer: a layer is the module that owns parameters."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence


def layers_of(names: Iterable[str]) -> tuple[list[str], list[int]]:
    """Partition parameters by the module that owns them: layer names in order, and each parameter's layer."""
    layers: dict[str, int] = {}
    index = [layers.setdefault(name.rpartition(".")[0], len(layers)) for name in names]
    return list(layers), index


def norms_by_layer(names: Iterable[str], norms: Iterable[float | None]) -> dict[str, float | None]:
    """Norm of each layer: the root of the sum of squares over its parameters (hypot: no overflow); None if unknown."""
    return norms_of(*layers_of(names), norms)


def norms_of(layers: Sequence[str], index: Iterable[int], norms: Iterable[float | None]) -> dict[str, float | None]:
    """The same, of layers and of each parameter's layer."""
    owned: list[list[float]] = [[] for _ in layers]
    for layer, norm in zip(index, norms, strict=True):
        owned[layer] += [] if norm is None else [norm]
    return {layer: math.hypot(*own) if own else None for layer, own in zip(layers, owned, strict=True)}


def late_to_early_ratio(norms: Sequence[float]) -> float:
    """Mean norm of the last tenth of the layers over that of the first tenth; infinite where the latter is zero."""
    tenth = max(1, len(norms) // 10)
    early, late = statistics.fmean(norms[:tenth]), statistics.fmean(norms[-tenth:])
    return late / early if early else math.inf if late else 1.0
