"""Where stability ends: edges along a row, the boundary of a grid, sensitivity. Arrays in, numbers out."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class RowEdge:
    """The end of stability along a row, towards larger values."""

    stable: float | None
    """The largest value below the edge that is stable; None where none is."""
    unstable: float | None
    """The smallest value beyond it; None where the sweep does not reach the edge."""
    islands: int = 0
    """Stable values beyond the edge: the boundary is not one line there."""
    log: bool = True
    before: float | None = None
    """The largest value below the first stable one that is not: stability has an edge on that side too."""

    @property
    def value(self) -> float | None:
        """The middle of the two, on the axis' scale; None where one is missing."""
        if self.stable is None or self.unstable is None:
            return None
        return math.sqrt(self.stable * self.unstable) if self.log else (self.stable + self.unstable) / 2


def row_edge(x: np.ndarray, stable: np.ndarray, log: bool = True) -> RowEdge:
    """x: (n,) increasing. stable: (n,) share of repeats that are stable, NaN unknown; a value is stable if all are.

    What is unstable below the first stable value (fp16 underflows at rates that are too low) is another edge.
    """
    known = ~np.isnan(stable)
    values, good = x[known], stable[known] >= 1
    if not good.any():
        return RowEdge(None, float(values[0]) if len(values) else None, log=log)
    first = int(np.argmax(good))
    before = float(values[first - 1]) if first else None
    bad = np.flatnonzero(~good[first:]) + first
    if not len(bad):
        return RowEdge(float(values[-1]), None, log=log, before=before)
    end = int(bad[0])
    return RowEdge(float(values[end - 1]), float(values[end]), int(good[end:].sum()), log, before)


def boundary(stable: np.ndarray) -> list[tuple[float, float, float, float]]:
    """Sides between points of which one is stable and the other is not: (x0, y0, x1, y1), where the point of row i
    and column j is the square from (j, i) to (j + 1, i + 1). stable: (ny, nx), NaN unknown, which ends the boundary.
    Sides in line are one."""
    known, good = ~np.isnan(stable), stable >= 1
    upright = (good[:, 1:] != good[:, :-1]) & known[:, 1:] & known[:, :-1]  # (ny, nx - 1)
    level = (good[1:] != good[:-1]) & known[1:] & known[:-1]  # (ny - 1, nx)
    sides = [(j + 1.0, float(a), j + 1.0, float(b)) for j in range(upright.shape[1]) for a, b in spans(upright[:, j])]
    return sides + [(float(a), i + 1.0, float(b), i + 1.0) for i in range(level.shape[0]) for a, b in spans(level[i])]


def spans(flags: np.ndarray) -> list[tuple[int, int]]:
    """(begin, end) of every streak of True."""
    change = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(int)))
    return [(int(a), int(b)) for a, b in zip(change[::2], change[1::2], strict=True)]


def widths(places: np.ndarray) -> np.ndarray:
    """(n,): width of axis per value: half-way to each neighbour, and at an end as far outwards."""
    if len(places) < 2:
        return np.ones(len(places))
    gaps = np.diff(places)
    around: np.ndarray = np.concatenate([gaps[:1], gaps]) + np.concatenate([gaps, gaps[-1:]])
    return around / 2


def sensitivity(places: np.ndarray, loss: np.ndarray, initial: np.ndarray | float) -> float:
    """Sensitivity of the loss to the learning rate: mean over rates of min(loss, initial loss), minus the best.

    E over rates of [min(l(rate), l0) - l*], with l* the least l of all rates: Wortsman et al. 2023, Small-scale
    proxies for large-scale Transformer training instabilities, arXiv:2309.14322, section 2.2; the rates uniform on a
    log scale. 0: every rate is as good as the best. Uneven rates are weighted by `widths`.

    places: (n,) rates on their scale. loss: (n,) final losses; infinite counts as the initial one, NaN was not run.
    NaN where fewer than two were.
    """
    run = ~np.isnan(loss)
    if run.sum() < 2:
        return math.nan
    capped = np.minimum(loss, initial)[run]
    if not np.isfinite(capped).all():  # the initial loss was not finite either
        return math.nan
    return float(np.average(capped, weights=widths(places[run])) - capped.min())
