"""What W&B is given of a line of metrics, of layers, and of a diagnosis: plain values, without W&B."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gradlab.loggers.thinning import even
from gradlab.update.recorder import Layers

PER_LAYER = ("grad/layer", "update/ratio")
"""Columns of layers.jsonl that are logged, a metric for each parameter."""
FINDINGS = ("severity", "code", "began", "sentence", "causes", "evidence")
"""Columns of the table of findings."""


def finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def with_nonfinite(metrics: dict[str, Any]) -> dict[str, Any]:
    """A line of metrics. W&B's charts leave out NaN and Inf: each is counted by a metric of its own too."""
    return metrics | {f"nonfinite/{name}": 1 for name, value in metrics.items() if not finite(value)}


def of_layers(names: Sequence[str], layers: Layers, most: int) -> dict[str, Any]:
    """Values of at most `most` parameters, and how many of all are not finite."""
    made: dict[str, Any] = {}
    for column in PER_LAYER:
        values = layers.get(column) or []
        for i in even(min(len(names), len(values)), most):
            if values[i] is not None:
                made[f"{column}/{names[i]}"] = values[i]
    bad = sum(not finite(value) for value in layers.get("grad/layer") or [])
    return made | ({"nonfinite/layers": bad} if bad else {})


def decades(values: Sequence[Any], bins: int = 32) -> tuple[list[int], list[float]] | None:
    """A histogram of the logarithms (base 10) of what is finite and above 0: counts, and the edges around them."""
    logs = [math.log10(v) for v in values if v is not None and 0 < v < math.inf]
    if not logs:
        return None
    low, high = min(logs), max(logs)
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    width = (high - low) / bins
    counts = [0] * bins
    for value in logs:
        counts[min(int((value - low) / width), bins - 1)] += 1
    return counts, [low + i * width for i in range(bins + 1)]


def findings(diagnosis: dict[str, Any]) -> list[list[Any]]:
    """One row a finding, in the order of diagnosis.json; an evidence of many numbers as text."""
    return [
        [
            f.get("severity"),
            f.get("code"),
            f.get("began"),
            f.get("sentence"),
            "; ".join(f.get("causes") or []),
            ", ".join(f"{k}={v}" for k, v in (f.get("evidence") or {}).items())[:2000],
        ]
        for f in diagnosis.get("findings") or []
    ]


def critical(diagnosis: dict[str, Any]) -> list[dict[str, Any]]:
    return [f for f in diagnosis.get("findings") or [] if f.get("severity") == "critical"]
