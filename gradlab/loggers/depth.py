"""What loggers and pages make of the norms of parameters: norms of layers, in the order in which they run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def layer_of(name: str, order: Sequence[str]) -> str:
    """The layer that a parameter belongs to: the longest of them that its name begins with."""
    return max((o for o in order if name == o or name.startswith(f"{o}.")), key=len, default=name)


def by_layer(names: Sequence[str], order: Sequence[str], norms: Sequence[float | None]) -> dict[str, float]:
    """Norm of each layer, in their order: the root of the sum of squares over its parameters (hypot: no overflow)."""
    parts: dict[str, list[float]] = {layer: [] for layer in order}
    for name, norm in zip(names, norms, strict=True):
        if norm is not None:
            parts.setdefault(layer_of(name, order), []).append(norm)
    return {layer: math.hypot(*found) for layer, found in parts.items() if found}


def spread_out(items: Sequence[Any], most: int) -> list[Any]:
    """At most so many of them, evenly, with the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / max(most - 1, 1))] for i in range(most)]
