"""How large the weights are that a run begins with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

ORDINARY = 1.1
"""Sizes up to which weights do not stretch what passes them: PyTorch's own are 0.58, Xavier's and orthogonal ones 1."""
SMALL = 0.3
"""Usual size below which weights shrink what passes them at every layer."""


def initial_sizes(
    header: Mapping[str, Any], norms: Sequence[float | None]
) -> tuple[dict[str, float], dict[str, float]]:
    """Of each weight the standard deviation times the root of its fan-in, and of each bias the root mean square.

    Weights of embeddings, and of containers, are no factors of a sum. header: the first line of layers.jsonl. norms: of
    its parameters at the first update; none where they were not recorded.
    """
    shapes, sizes, biases = header.get("shapes") or [], dict[str, float](), dict[str, float]()
    if not len(shapes) == len(header["names"]) == len(norms):
        return sizes, biases
    sums = header.get("summed") or [True] * len(shapes)
    for name, shape, norm, factor in zip(header["names"], shapes, norms, sums, strict=True):
        if norm is None or not math.isfinite(norm):
            continue
        if len(shape) == 1 and name.split(".")[-1].startswith("bias"):
            biases[name] = norm / math.sqrt(shape[0])
        elif len(shape) >= 2 and factor:
            sizes[name] = norm / math.sqrt(shape[0])
    return sizes, biases
