"""A sweep as a grid: two axes, the repeats of each point together, the other fields as slices."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gradlab.runs.outcome_class import LEARNT, NAMES, share, worst
from gradlab.sweep.maps.axis import Axis, Row, axis_of, label, swept_fields
from gradlab.sweep.results import REPEATS

SPARSE = 0.5
"""With fewer of its points run than this, points of a numeric grid that were not run count as their nearest one."""
METRICS = {
    "outcome": "outcome",
    "loss/final": "final training loss",
    "loss/best": "best training loss",
    "eval/loss": "evaluation loss",
    "grad/norm_median": "gradient norm, median",
    "grad/norm_p95": "gradient norm, 95%",
    "grad/norm_max": "gradient norm, largest",
    "clip/fraction": "updates clipped",
    "survived": "updates survived",
    "skipped": "updates skipped",
    "stable": "repeats that are stable",
}
"""What a map can show."""
SHARES = ("clip/fraction", "survived", "stable")
"""From 0 to 1; the others on a logarithmic scale."""
CAP = 1.5
"""Losses above this much of the initial one are all the same colour: how far a run diverged does not matter."""


@dataclass
class MapPoint:
    """One point of a map: its repeats under several seeds."""

    jobs: list[Row]

    @property
    def outcome(self) -> str:
        """The worst of its repeats."""
        return worst([job["outcome"] for job in self.jobs])

    @property
    def stable(self) -> float:
        """Share of its repeats that are stable; NaN where none was judged."""
        return share([job["outcome"] for job in self.jobs])

    @property
    def learnt(self) -> float:
        return share([job["outcome"] for job in self.jobs], LEARNT)

    def metric(self, name: str) -> float:
        """The median over the repeats; NaN where nothing was measured."""
        if name == "stable":
            return self.stable
        if name == "outcome":
            return float(NAMES.index(self.outcome))
        values = [job[name] for job in self.jobs if job.get(name) is not None]
        if name == "survived":
            values = [j["survived"] / j["planned"] for j in self.jobs if j.get("planned") and j["survived"] is not None]
        values = [v for v in values if not math.isnan(v)]
        return statistics.median(values) if values else math.nan


@dataclass
class Grid:
    """One slice of a sweep."""

    x: Axis
    y: Axis
    points: dict[tuple[int, int], MapPoint]
    """(row, column) -> what was run there."""
    slice: dict[str, Any] = field(default_factory=dict)
    """The other fields, that are the same in all of it."""

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.y.values), len(self.x.values)

    @property
    def sparse(self) -> bool:
        """Whether it was refined in places, so that what lies between stands for more than itself."""
        ny, nx = self.shape
        even = self.x.numeric and (self.y.numeric or ny == 1)
        return even and ny * nx >= 64 and len(self.points) < SPARSE * ny * nx

    def source(self) -> np.ndarray:
        """(ny, nx, 2): (row, column) of the point that each one shows; -1 where nothing was run (see SPARSE)."""
        source = np.full((*self.shape, 2), -1)
        for i, j in self.points:
            source[i, j] = i, j
        if self.sparse:
            from scipy.ndimage import distance_transform_edt

            _, nearest = distance_transform_edt(source[..., 0] < 0, return_indices=True)
            source = np.moveaxis(nearest, 0, -1)
        return source

    def array(self, name: str) -> np.ndarray:
        """(ny, nx): a metric, `stable` or `learnt`; NaN where nothing was run or measured."""
        values = {at: cell.learnt if name == "learnt" else cell.metric(name) for at, cell in self.points.items()}
        shown = self.source()
        return np.array([[values.get((int(i), int(j)), math.nan) for i, j in row] for row in shown]).reshape(self.shape)

    @property
    def title(self) -> str:
        return ", ".join(f"{name}={label(v)}" for name, v in self.slice.items())


def grids(rows: Sequence[Row], x: str, y: str | None) -> list[Grid]:
    """One grid for each value of the fields that are neither axes nor repeats; all with the same axes."""
    others = [name for name in swept_fields(rows) if name not in (x, y, *REPEATS)]
    across, up = axis_of(rows, x), axis_of(rows, y) if y else Axis("", ("",))
    columns, lines = {v: j for j, v in enumerate(across.values)}, {v: i for i, v in enumerate(up.values)}
    made: dict[tuple[Any, ...], Grid] = {}
    for row in rows:
        which = tuple(row[name] for name in others)
        grid = made.setdefault(which, Grid(across, up, {}, dict(zip(others, which, strict=True))))
        at = (lines[row[y]] if y else 0, columns[row[x]])
        grid.points.setdefault(at, MapPoint([])).jobs.append(row)
    return list(made.values())


@dataclass(frozen=True)
class Limits:
    """The scale of a metric's colours, for all slices."""

    low: float
    high: float
    log: bool
    capped: bool = False
    """Whether there is more than `high`."""


def limits(slices: Sequence[Grid], name: str) -> Limits | None:
    """None where nothing was measured."""
    values = np.array([cell.metric(name) for grid in slices for cell in grid.points.values()])
    finite = values[np.isfinite(values)]
    if not len(finite):
        return None
    if name in SHARES:
        return Limits(0.0, 1.0, False)
    log, high = bool((finite > 0).any() and (finite >= 0).all()) and name != "skipped", finite.max()
    if "loss" in name:
        initial = [c.metric("loss/initial") for grid in slices for c in grid.points.values()]
        top = CAP * float(np.nanmedian(initial)) if np.isfinite(initial).any() else math.inf
        high = min(high, top) if top > finite.min() else high
    low = finite[finite > 0].min() if log else finite.min()
    return Limits(float(low), float(high), log, bool(high < finite.max()))
