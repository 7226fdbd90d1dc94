"""A sweep as a grid: two axes chosen, repeats of a point brought together, the other fields as slices."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gradlab.option import Invalid
from gradlab.sweep.outcome import LEARNT, NAMES, share, worst
from gradlab.sweep.results import REPEATS

Row = dict[str, Any]
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
"""What a map can show. Losses and norms on a logarithmic scale, shares from 0 to 1."""


@dataclass(frozen=True)
class Axis:
    """One field of a sweep: its values in order; those that are not numbers are categories in the order of the sweep."""

    name: str
    values: tuple[Any, ...]

    @property
    def numeric(self) -> bool:
        return bool(self.values) and all(is_number(v) for v in self.values)

    @property
    def log(self) -> bool:
        """Whether its values are spread over orders of magnitude."""
        return self.numeric and self.values[0] > 0 and self.values[-1] / self.values[0] >= 8

    @property
    def places(self) -> np.ndarray:
        """(n,): where its values stand on a scale on which it is even."""
        if not self.numeric:
            return np.arange(len(self.values), dtype=float)
        values = np.array(self.values, dtype=float)
        return np.log10(values) if self.log else values

    @property
    def labels(self) -> list[str]:
        return [label(v) for v in self.values]


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def label(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


@dataclass
class Cell:
    """One point: its repeats brought together."""

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
    cells: dict[tuple[int, int], Cell]
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
        return even and ny * nx >= 64 and len(self.cells) < SPARSE * ny * nx

    def source(self) -> np.ndarray:
        """(ny, nx, 2): (row, column) of the point that each one shows; -1 where nothing was run (see SPARSE)."""
        source = np.full((*self.shape, 2), -1)
        for i, j in self.cells:
            source[i, j] = i, j
        if self.sparse:
            from scipy.ndimage import distance_transform_edt

            _, nearest = distance_transform_edt(source[..., 0] < 0, return_indices=True)
            source = np.moveaxis(nearest, 0, -1)
        return source

    def array(self, name: str) -> np.ndarray:
        """(ny, nx): a metric, `stable` or `learnt`; NaN where nothing was run or measured."""
        values = {at: cell.learnt if name == "learnt" else cell.metric(name) for at, cell in self.cells.items()}
        shown = self.source()
        return np.array([[values.get((int(i), int(j)), math.nan) for i, j in row] for row in shown]).reshape(self.shape)

    @property
    def title(self) -> str:
        return ", ".join(f"{name}={label(v)}" for name, v in self.slice.items())


def axis_of(rows: Sequence[Row], name: str) -> Axis:
    found = list(dict.fromkeys(row.get(name) for row in rows))
    if all(is_number(v) for v in found):
        found.sort()
    return Axis(name, tuple(found))


def swept_fields(rows: Sequence[Row]) -> list[str]:
    """Columns between those that every sweep has: the swept fields (see `results.read`)."""
    names = list(rows[0])
    return names[names.index("exit_code") + 1 : names.index("loss/initial")]


def choose_axes(rows: Sequence[Row], x: str | None = None, y: str | None = None) -> tuple[str, str | None]:
    """The fields of a map: those asked for, else the rate and the field of the most values, numeric ones first."""
    names = swept_fields(rows)
    for flag, name in (("--x", x), ("--y", y)):
        if name is not None and name not in names:
            raise Invalid(flag, name, f"was not swept; there are {', '.join(names) or 'no swept fields'}")
    if x is not None and x == y:
        raise Invalid("--y", y, "must be another field than --x")
    axes = [axis_of(rows, name) for name in names if name not in (*REPEATS, x, y)]
    axes.sort(key=lambda a: (not a.numeric, a.name != "optimizer.lr", -len(a.values)))
    left = [a.name for a in axes]
    if x is None:
        if not left:
            raise Invalid("FOLDER", "its sweep", f"must sweep a field other than {', '.join(REPEATS)}")
        x = left.pop(0)
    return x, y or (left[0] if left else None)


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
        grid.cells.setdefault(at, Cell([])).jobs.append(row)
    return list(made.values())
