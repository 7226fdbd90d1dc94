"""report.html of a sweep, in one file that needs no network. Its parts lie in gradlab/report/pages/assets."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradlab.base.command import command, key
from gradlab.base.json_lines import write_whole
from gradlab.base.option import Invalid
from gradlab.base.visible import one_line, visible
from gradlab.config.compose import SILENT
from gradlab.report.pages import map_section, sweep_sections
from gradlab.report.pages.page_template import page, short
from gradlab.runs.curve import curve
from gradlab.runs.outcome_class import NAMES, OUTCOMES, UNENDED
from gradlab.runs.record import REFUSED, RunRecord
from gradlab.runs.sweep_record import SweepRecord
from gradlab.sweep.maps.axis import Axis, axis_of, swept_fields

if TYPE_CHECKING:
    from gradlab.sweep.maps.sweep_map import SweepMap

POINTS, BUDGET = 200, 100_000
"""Points of a curve at most, and of all curves: about 15 bytes each."""
NUMBERS = (
    "loss/final",
    "eval/loss",
    "loss/initial",
    "loss/best",
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
FILES = (
    "results.csv",
    "map.json",
    "comparison.csv",
    "edges.csv",
    "cells.json",
    "fix.json",
    "figures/map.png",
    "figures/map.svg",
)
"""What else a sweep's folder may hold."""
VIEWS = ("charts", "curves", "fix", "map", "remedies", "edges", "lines", "table")
PROGRAMS = ("base.js", "sweep.js", *(f"sweep_{view}.js" for view in VIEWS), "sweep_begin.js")


def written(
    folder: Path,
    rows: Sequence[dict[str, Any]],
    drawn: SweepMap | None = None,
    compared: list[dict[str, Any]] | None = None,
    planned: int = 0,
) -> Path | None:
    """The page, or a line on stderr why it could not be written: the sweep's exit code stays."""
    try:
        return write(folder, rows, drawn, compared, planned)
    except Exception as error:
        file = one_line(str(folder / "report.html"))
        print(f"gradlab: {file} was not written: {visible(' '.join(str(error).split()))}", file=sys.stderr)
        return None


def write(
    folder: Path,
    rows: Sequence[dict[str, Any]] | None = None,
    drawn: SweepMap | None = None,
    compared: list[dict[str, Any]] | None = None,
    planned: int = 0,
) -> Path:
    """Write report.html from the jobs' folders; returns its path. Raises `Invalid` where there is no job.

    rows, drawn (`maps.SweepMap`), compared (`compare`), planned (jobs of it): what is known already, as it is when a
    sweep has just ended.
    """
    from gradlab.sweep import results

    rows = results.read(folder) if rows is None else rows
    if not rows:
        raise Invalid("FOLDER", folder, "must be the folder of a sweep (it holds no job)")
    content = data(folder, rows, drawn, compared, planned)
    path = folder / "report.html"
    text = page("sweep.html", content["title"], ("base.css", "sweep.css"), PROGRAMS, data=content)
    write_whole(path, text)
    return path


def data(
    folder: Path,
    rows: Sequence[dict[str, Any]],
    drawn: SweepMap | None,
    compared: list[dict[str, Any]] | None,
    planned: int,
) -> dict[str, Any]:
    """All that the page shows."""
    axes = [axis_of(rows, name) for name in swept_fields(rows)]
    index = {row["job"]: i for i, row in enumerate(rows)}
    points = max(8, min(POINTS, BUDGET // len(rows)))
    xs: dict[tuple[Any, ...], int] = {}
    places = [{value: i for i, value in enumerate(axis.values)} for axis in axes]
    jobs = [
        job_of(folder, row, points, xs)
        | {"fields": [of[row[axis.name]] for of, axis in zip(places, axes, strict=True)]}
        for row in rows
    ]
    fixed = sweep_sections.fix(folder, index)  # its trials are no grid, and have no map
    unfinished = sum(row["outcome"] in UNENDED and row["verdict"] != REFUSED for row in rows)
    unfinished += max(planned - len(rows), 0)
    return {
        "title": f"{'fix' if (folder / 'fix.json').is_file() else 'sweep'} {folder.resolve().name}",
        "folder": str(folder),
        "files": [name for name in FILES if (folder / name).is_file()],
        "common": common(folder, rows),
        "command": repeating(folder),
        "fields": [field_of(axis) for axis in axes],
        "numbers": list(NUMBERS),
        "outcomes": [
            {"name": o.name, "means": o.means, "colour": o.colour, "letter": o.letter, "light": o.light}
            for o in OUTCOMES
        ],
        "unfinished": {"count": unfinished, "command": command([f"resume={folder}"]) if unfinished else ""},
        "jobs": jobs,
        "xs": [list(x) for x in xs],
        "map": None if fixed else map_section.data(folder, rows, drawn, index),
        "remedies": sweep_sections.remedies(folder, rows, compared, index),
        "edges": sweep_sections.edges(folder, index),
        "cells": sweep_sections.cells(folder),
        "fix": fixed,
    }


UNFINISHED = "unfinished"
"""Stands for the verdict of a job that was not begun, or is not over."""


def job_of(folder: Path, row: dict[str, Any], points: int, xs: dict[tuple[Any, ...], int]) -> dict[str, Any]:
    """A job's numbers and curves. xs: the attempts of curves, which most of a sweep's jobs share."""
    path = folder / row["job"]
    attempts, *curves = curve(path / "metrics.jsonl", points)
    none = "no verdict" if (path / "diagnosis.json").is_file() else UNFINISHED
    return {
        "job": row["job"],
        "page": (path / "report.html").is_file(),
        "outcome": NAMES.index(row["outcome"]),
        "verdict": row["verdict"] or none,
        "why": " ".join(str(row["why"]).split())[:300],
        "seed": short(row.get("seed")),
        "numbers": [short(row[name]) for name in NUMBERS],
        "x": xs.setdefault(tuple(attempts), len(xs)),
        "curves": [[short(v) for v in series] for series in curves],
    }


def field_of(axis: Axis) -> dict[str, Any]:
    """A swept field: its values in order; jobs give their place among them."""
    values = [short(v, 7) for v in axis.values] if axis.numeric else None
    return {"name": axis.name, "labels": axis.labels, "values": values, "log": axis.log}


def common(folder: Path, rows: Sequence[dict[str, Any]]) -> str:
    """The overrides that all jobs have."""
    swept = set(swept_fields(rows))
    return " ".join(o for o in RunRecord(folder / rows[0]["job"]).overrides if key(o) not in swept)


def repeating(folder: Path) -> str:
    """The command of the sweep, without its folder; empty where that is not known."""
    try:
        given = SweepRecord(folder).hydra["overrides"]
        typed = [*given["task"], *(o for o in given["hydra"] if o not in SILENT)]
    except (KeyError, TypeError):
        return ""
    gone = ("hydra.mode", "hydra.sweep.dir", "hydra.callbacks.gradlab.goes_on", "resume")
    return command(["-m", *(o for o in map(str, typed) if key(o) not in gone)])
