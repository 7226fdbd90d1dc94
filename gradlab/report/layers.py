"""What a layer is wherever norms are shown by layer: the module that owns a parameter.

As in `rows` of report/pages/assets/run.js.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

ROOT = "(the model)"
"""Owner of the parameters that no module inside the model owns."""


def by_layer(names: Sequence[str], order: Sequence[str], norms: Sequence[float | None]) -> dict[str, float | None]:
    """Norm of each layer: the root of the sum of squares over its parameters (hypot: no overflow); None if unknown.

    names: of the parameters. order: layers as they run (see layers.jsonl); any others come last.
    """
    owned: dict[str, list[float]] = {}
    for name, norm in zip(names, norms, strict=True):
        owned.setdefault(name.rpartition(".")[0], []).extend([] if norm is None else [norm])
    layers = [layer for layer in dict.fromkeys([*order, *owned]) if layer in owned]
    return {layer or ROOT: math.hypot(*owned[layer]) if owned[layer] else None for layer in layers}
