"""map.html: a map to look into, in one file that needs no network. Its parts lie in gradlab/sweep/page."""

from __future__ import annotations

import html
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradlab.sweep.map_edge import boundary
from gradlab.sweep.map_grid import METRICS, SHARES, Grid, limits
from gradlab.sweep.measure import curve
from gradlab.sweep.outcome import NAMES, OUTCOMES

if TYPE_CHECKING:
    from gradlab.sweep.map_advice import Line, Recommendation

PARTS = Path(__file__).parent / "page"
POINTS, BUDGET = 200, 100_000
"""Points of a curve at most, and of all curves: about 20 bytes each."""
NUMBERS = (
    "eval/loss",
    "loss/initial",
    "loss/best",
    "loss/final",
    "grad/norm_median",
    "grad/norm_p95",
    "grad/norm_max",
    "clip/fraction",
    "updates",
    "survived",
    "planned",
    "skipped",
    "seconds",
    "exit_code",
)
"""Columns of results.csv that the page shows of a job."""


def write(path: Path, folder: Path, slices: list[Grid], told: list[tuple[list[Line], Recommendation | None]]) -> None:
    """Put template, style, program and data into one file."""
    path.write_text(page("map.html", f"map of {folder.name}", data(folder, slices, told)), encoding="utf-8")


def page(template: str, title: str, content: Any) -> str:
    """A template with `{{title}}`, `{{style}}`, `{{program}}` and `{{data}}` filled in, in one pass."""
    name = template.removesuffix(".html")
    values = {
        "title": html.escape(title),
        "style": (PARTS / f"{name}.css").read_text(encoding="utf-8"),
        "program": (PARTS / f"{name}.js").read_text(encoding="utf-8"),
        "data": embedded(content),
    }
    pieces = (PARTS / template).read_text(encoding="utf-8").split("{{")
    filled = [piece.split("}}", 1) for piece in pieces[1:]]
    return pieces[0] + "".join(values[name] + rest for name, rest in filled)


def embedded(content: Any) -> str:
    """JSON that can stand in a script element: nothing in it ends that element or begins a comment."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def short(value: Any, digits: int = 4) -> Any:
    """A number in few bytes; what JSON cannot hold as a string."""
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None if math.isnan(value) else "inf" if value > 0 else "-inf"
    value = float(f"{value:.{digits}g}")
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def data(folder: Path, slices: list[Grid], told: list[tuple[list[Line], Recommendation | None]]) -> dict[str, Any]:
    """All that the page shows."""
    from gradlab.sweep.maps import paste

    jobs = [job for grid in slices for cell in grid.cells.values() for job in cell.jobs]
    index = {job["job"]: i for i, job in enumerate(jobs)}
    points = max(8, min(POINTS, BUDGET // max(len(jobs), 1)))
    x, y = slices[0].x, slices[0].y
    return {
        "folder": str(folder),
        "x": {"name": x.name, "labels": x.labels},
        "y": {"name": y.name, "labels": y.labels},
        "outcomes": [
            {"name": o.name, "means": o.means, "colour": o.colour, "letter": o.letter, "light": o.light}
            for o in OUTCOMES
        ],
        "metrics": [metric_of(slices, name) for name in METRICS],
        "numbers": list(NUMBERS),
        "slices": [
            {
                "title": grid.title,
                "cells": [cell_of(grid, at, index) for at in sorted(grid.cells)],
                "source": nearest(grid),
                "boundary": boundary(grid.array("stable")),
                "lines": [line_of(line) for line in lines],
                "says": best.says if best else "",
                "command": (paste(folder, best) if best else None) or "",
            }
            for grid, (lines, best) in zip(slices, told, strict=True)
        ],
        "jobs": [job_of(folder, job, points) for job in jobs],
    }


def metric_of(slices: list[Grid], name: str) -> dict[str, Any]:
    """A metric with the scale of its colours."""
    scale = limits(slices, name)
    repeated = any(len(cell.jobs) > 1 for grid in slices for cell in grid.cells.values())
    measured = scale is not None and (name != "stable" or repeated)
    found = {k: short(v) for k, v in asdict(scale).items()} if scale else {}
    return {"name": name, "title": METRICS[name], "share": name in SHARES, "measured": measured} | found


def nearest(grid: Grid) -> list[int] | None:
    """Of a sparse grid, for each place row by row, the point among its cells that it shows."""
    if not grid.sparse:
        return None
    index = {at: i for i, at in enumerate(sorted(grid.cells))}
    return [index[int(i), int(j)] for i, j in grid.source().reshape(-1, 2)]


def cell_of(grid: Grid, at: tuple[int, int], index: dict[str, int]) -> dict[str, Any]:
    """[row, column], its jobs, and what each metric is there."""
    cell = grid.cells[at]
    values = [short(cell.metric(name)) for name in METRICS]
    return {"at": at, "jobs": [index[job["job"]] for job in cell.jobs], "values": values}


def line_of(line: Line) -> list[Any]:
    e = line.edge
    return [short(v) for v in (e.stable, e.unstable, line.learning.stable, line.sensitivity, line.best, line.best_at)]


def job_of(folder: Path, job: dict[str, Any], points: int) -> dict[str, Any]:
    """A job's numbers and curves."""
    curves = curve(folder / job["job"] / "metrics.jsonl", points)
    return {
        "job": job["job"],
        "outcome": NAMES.index(job["outcome"]),
        "verdict": job["verdict"] or "no verdict",
        "why": " ".join(str(job["why"]).split())[:300],
        "seed": short(job.get("seed")),
        "numbers": [short(job[name]) for name in NUMBERS],
        "curves": [[short(v) if i else v for v in series] for i, series in enumerate(curves)],
    }
