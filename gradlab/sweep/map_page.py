"""map.html: a map to look into, in one file that needs no network. Its parts lie in gradlab/sweep/page."""

from __future__ import annotations

import html
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradlab.sweep.map_edge import boundary
from gradlab.sweep.map_grid import METRICS, Grid
from gradlab.sweep.map_figure import SHARES
from gradlab.sweep.measure import curve
from gradlab.sweep.outcome import NAMES, OUTCOMES
from gradlab.sweep.results import overrides_of

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
        "outcomes": [{"name": o.name, "means": o.means, "colour": o.colour, "letter": o.letter} for o in OUTCOMES],
        "metrics": [{"name": n, "title": title, "share": n in SHARES} for n, title in METRICS.items()],
        "numbers": list(NUMBERS),
        "common": common(folder, jobs),
        "slices": [
            {
                "title": grid.title,
                "cells": [cell_of(grid, at, index) for at in sorted(grid.cells)],
                "sparse": grid.sparse,
                "boundary": boundary(grid.array("stable")),
                "lines": [line_of(line) for line in lines],
                "says": best.says if best else "",
                "command": (paste(folder, best) if best else None) or "",
            }
            for grid, (lines, best) in zip(slices, told, strict=True)
        ],
        "jobs": [job_of(folder, job, points) for job in jobs],
    }


def common(folder: Path, jobs: list[dict[str, Any]]) -> list[str]:
    """Overrides that all jobs share."""
    first, *rest = [overrides_of(folder / job["job"]) for job in jobs]
    return [o for o in first if all(o in other for other in rest)]


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
        "curves": [[short(v, 3) if i else v for v in series] for i, series in enumerate(curves)],
    }
