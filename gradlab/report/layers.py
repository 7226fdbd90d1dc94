"""Norms by layer as they are shown: in the order in which layers run.

As in `rows` of report/pages/assets/run.js.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradlab.update.layers import norms_by_layer

ROOT = "(the model)"
"""Owner of the parameters that no module inside the model owns."""


def by_layer(names: Sequence[str], order: Sequence[str], norms: Sequence[float | None]) -> dict[str, float | None]:
    """Norm of each layer; None if unknown.

    names: of the parameters. order: layers as they run (see layers.jsonl); any others come last.
    """
    found = norms_by_layer(names, norms)
    return {layer or ROOT: found[layer] for layer in dict.fromkeys([*order, *found]) if layer in found}
