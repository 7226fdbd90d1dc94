"""Lanes that are still the same run: they differ in a clipping threshold that none of their gradients has reached.

Such lanes are one row of a stack, until an update would clip some of them; each of those then gets a row of its own. In
a map over max_norm this is every run whose bound lies above all of its norms, and of the others the time before.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

Members = list[tuple[float, int]]
"""(threshold, lane) of the lanes of a row, from the lowest threshold, which is the row's, to the highest."""


def apart(config: Any) -> str:
    """What runs of one program differ in, except the threshold of their clip; runs with the same begin as one row."""
    clip = {k: v for k, v in vars(config.clip).items() if k != config.clip.threshold}
    parts = (config.seed, config.optimizer, config.schedule, config.precision, config.noise, config.model, clip)
    return repr((*parts, config.init_from, config.pretrain))


def rows(configs: Sequence[Any]) -> list[Members]:
    """The rows that these runs begin as: one each where their clip has no threshold, or noise comes before it."""
    name = configs[0].clip.threshold
    if name is None or any(config.noise.active for config in configs):
        return [[(math.inf, lane)] for lane in range(len(configs))]
    together: dict[str, Members] = {}
    for lane, config in enumerate(configs):
        together.setdefault(apart(config), []).append((getattr(config.clip, name), lane))
    return [sorted(row) for row in together.values()]


def split(rows: list[Members], reach: Sequence[float]) -> tuple[list[Members], list[int]]:
    """Part those whose thresholds their row's gradient passes. reach: the least threshold that leaves each row alone.

    Returns the new rows, and the old row that each continues. A row that is not finite is not applied, and stays.
    """
    kept, made, origin = [], list[Members](), list[int]()
    for i, (row, r) in enumerate(zip(rows, reach, strict=True)):
        acts = bisect_left(row, (r, -1)) if math.isfinite(r) else 0
        alone = min(acts, len(row) - 1)  # the last of them can have the row
        kept.append(row[alone:])
        made += [[member] for member in row[:alone]]
        origin += [i] * alone
    return kept + made, [*range(len(rows)), *origin]
