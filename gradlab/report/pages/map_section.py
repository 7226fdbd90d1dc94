"""The map of a sweep as its page shows it: axes, cells, metrics with their scales, edges, and what to use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradlab.report.pages.page_template import short
from gradlab.sweep.maps.grid import METRICS, SHARES, Grid, limits
from gradlab.sweep.maps.stability import boundary

if TYPE_CHECKING:
    from gradlab.sweep.maps.recommendation import RowSummary
    from gradlab.sweep.maps.sweep_map import SweepMap


def data(
    folder: Path, rows: Sequence[dict[str, Any]], drawn: SweepMap | None, index: dict[str, int]
) -> dict[str, Any] | None:
    """None where nothing but seeds was swept, and of a search for edges, whose values form no grid.

    index: of each job, its place among the page's.
    """
    from gradlab.sweep.maps import sweep_map
    from gradlab.sweep.maps.axis import swept_fields
    from gradlab.sweep.results import REPEATS

    if drawn is None:
        if (folder / "edges.json").is_file() or not set(swept_fields(rows)) - set(REPEATS):
            return None
        drawn = sweep_map.drawn(rows)
    slices, x, y = drawn.slices, drawn.slices[0].x, drawn.slices[0].y
    return {
        "x": {"name": x.name, "labels": x.labels},
        "y": {"name": y.name, "labels": y.labels},
        "metrics": [metric_of(slices, name) for name in METRICS],
        "slices": [
            {
                "title": grid.title,
                "cells": [cell_of(grid, at, index) for at in sorted(grid.points)],
                "source": nearest(grid),
                "boundary": boundary(grid.array("stable")) if x.numeric else [],
                "lines": [line_of(line) for line in lines],
                "says": best.says if best else "",
                "command": (sweep_map.paste(folder, best) if best else None) or "",
                "jobs": [index[job["job"]] for job in best.cell.jobs] if best and best.cell else [],
            }
            for grid, (lines, best) in zip(slices, drawn.results, strict=True)
        ],
    }


def metric_of(slices: list[Grid], name: str) -> dict[str, Any]:
    """A metric with the scale of its colours."""
    scale = limits(slices, name)
    repeated = any(len(cell.jobs) > 1 for grid in slices for cell in grid.points.values())
    measured = scale is not None and (name != "stable" or repeated)
    found = {k: short(v) for k, v in asdict(scale).items()} if scale else {}
    return {"name": name, "title": METRICS[name], "share": name in SHARES, "measured": measured} | found


def nearest(grid: Grid) -> list[int] | None:
    """Of a sparse grid, for each place row by row, the point among its cells that it shows."""
    if not grid.sparse:
        return None
    index = {at: i for i, at in enumerate(sorted(grid.points))}
    return [index[int(i), int(j)] for i, j in grid.source().reshape(-1, 2)]


def cell_of(grid: Grid, at: tuple[int, int], index: dict[str, int]) -> dict[str, Any]:
    """[row, column], its jobs, and what each metric is there."""
    cell = grid.points[at]
    values = [short(cell.metric(name)) for name in METRICS]
    return {"at": at, "jobs": [index[job["job"]] for job in cell.jobs], "values": values}


def line_of(line: RowSummary) -> list[Any]:
    e, sensitivity = line.edge, (line.sensitivity, line.sensitivity_spread)
    return [short(v) for v in (e.stable, e.unstable, line.learning.stable, *sensitivity, line.best, line.best_at)]
