"""The map of a sweep from its rows: map.json, figures, and the printed table; report.html shows it too."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradlab.base import table
from gradlab.base.command import command, key
from gradlab.base.json_lines import write_json
from gradlab.base.visible import one_line
from gradlab.runs.outcome_class import NAMES
from gradlab.runs.record import RunRecord
from gradlab.sweep.results import REPEATS

if TYPE_CHECKING:
    from gradlab.sweep.maps.grid import Grid
    from gradlab.sweep.maps.recommendation import Recommendation, RowSummary

LEAST = 3
"""Values of a numeric field that a sweep draws a map of by itself; or two of each of two fields."""
SHOWN = 20
"""Rows of a map's table that are printed."""


def worth_a_map(rows: Sequence[dict[str, Any]]) -> bool:
    """Whether a sweep is over a numeric field, and not over a handful of remedies or seeds."""
    from gradlab.sweep.maps.axis import axis_of, swept_fields

    axes = [axis_of(rows, name) for name in swept_fields(rows) if name not in REPEATS]
    counts = sorted((len(axis.values) for axis in axes if axis.numeric), reverse=True)
    return bool(counts) and (counts[0] >= LEAST or len(counts) > 1)


@dataclass(frozen=True)
class SweepMap:
    """A map: its slices, and for each its rows and its recommendation."""

    slices: list[Grid]
    results: list[tuple[list[RowSummary], Recommendation | None]]


def sweep_ended(folder: Path, rows: Sequence[dict[str, Any]]) -> SweepMap | None:
    """Draw the map of a sweep that is worth one: not where all jobs were stopped."""
    ended = any(row["outcome"] != "stopped" for row in rows)
    return make(folder, rows) if ended and worth_a_map(rows) else None


def drawn(
    rows: Sequence[dict[str, Any]], x: str | None = None, y: str | None = None, margin: float | None = None
) -> SweepMap:
    """The map of a sweep. Raises `Invalid` where there is nothing to draw."""
    from gradlab.sweep.maps import recommendation
    from gradlab.sweep.maps.axis import choose_axes
    from gradlab.sweep.maps.grid import grids

    slices = grids(rows, *choose_axes(rows, x, y))
    return SweepMap(slices, [judged(grid, recommendation.MARGIN if margin is None else margin) for grid in slices])


def make(
    folder: Path,
    rows: Sequence[dict[str, Any]],
    x: str | None = None,
    y: str | None = None,
    metric: str | None = None,
    margin: float | None = None,
) -> SweepMap:
    """Write map.json and the figures, and print. Raises `Invalid` where there is nothing to draw."""
    from gradlab.sweep.maps import figure

    made = drawn(rows, x, y, margin)
    one = made.slices[0]
    write(folder, made)
    figures = [f for g in made.slices for f in figure.draw(g, folder / "figures" / f"map{suffix(g)}", metric)]
    if one.x.numeric and len(one.y.values) <= SHOWN and not one.y.numeric:
        figures += figure.curves(made.slices, folder / "figures" / "curves")
    for grid, (lines, best) in zip(made.slices, made.results, strict=True):
        print_slice(folder, grid, lines, best)
    print(f"map: {', '.join(one_line(str(f)) for f in figures if f.suffix == '.png')}", flush=True)
    return made


def judged(grid: Grid, margin: float) -> tuple[list[RowSummary], Recommendation | None]:
    """The rows of a grid and its recommendation; none where x is no number."""
    from gradlab.sweep.maps.recommendation import recommend, summarize_rows

    if not grid.x.numeric:
        return [], None
    found = summarize_rows(grid, margin)
    return found, recommend(grid, found, margin)


def suffix(grid: Grid) -> str:
    """What a slice adds to the name of its file."""
    return "".join(f"_{re.sub(r'[^A-Za-z0-9.=+-]+', '-', f'{k}={v}')}" for k, v in grid.slice.items())


def paste(folder: Path, best: Recommendation) -> str | None:
    """The command of the recommended point: that of a job that was run, less its seed."""
    if best.cell is None:
        return None
    typed = RunRecord(folder / best.cell.jobs[0]["job"]).overrides
    return command([*(o for o in typed if key(o) not in (*REPEATS, "expect")), "expect=healthy"])


def write(folder: Path, made: SweepMap) -> None:
    """map.json: axes; of every slice its points, rows (edge, sensitivity) and recommendation."""
    one = made.slices[0]
    content = {
        "x": {"name": one.x.name, "values": one.x.values, "log": one.x.log},
        "y": {"name": one.y.name, "values": one.y.values, "log": one.y.log} if one.y.name else None,
        "slices": [
            {
                "fields": grid.slice,
                "points": [
                    {"x": one.x.values[j], "y": one.y.values[i], "outcome": cell.outcome, "stable": cell.stable}
                    | {"jobs": [job["job"] for job in cell.jobs]}
                    for (i, j), cell in sorted(grid.points.items())
                ],
                "rows": [asdict(line) | {"edge": asdict(line.edge) | {"value": line.edge.value}} for line in lines],
                "recommendation": best and {"says": best.says, "values": best.values, "command": paste(folder, best)},
            }
            for grid, (lines, best) in zip(made.slices, made.results, strict=True)
        ],
    }
    write_json(folder / "map.json", content, indent=1)


def print_slice(folder: Path, grid: Grid, lines: list[RowSummary], best: Recommendation | None) -> None:
    """Print one slice: how many of each class, a line a row, the recommendation with its command."""
    outcomes = [cell.outcome for cell in grid.points.values()]
    counts = ", ".join(f"{outcomes.count(name)} {name}" for name in NAMES if name in outcomes)
    ny, nx = grid.shape
    missing = f" ({ny * nx - len(outcomes)} points of the grid were not run)" if len(outcomes) < ny * nx else ""
    axes = f"{grid.x.name} ({nx})" + (f" x {grid.y.name} ({ny})" if grid.y.name else "")
    print(f"\nmap of {axes}{f', {grid.title}' if grid.title else ''}: {counts}{missing}")
    if lines:
        step = -(-len(lines) // SHOWN)
        cells = [shown(line) for line in lines[::step]]
        rows = [[grid.y.labels[i * step] if grid.y.name else "", *c.values()] for i, c in enumerate(cells)]
        table.show(f"the edge of stability in {grid.x.name}", [grid.y.name, *cells[0]], rows)
        if step > 1:
            print(f"(one row in {step}; all of them: map.json)")
    if best is not None:
        print(f"recommended: {best.says}")
        if (line := paste(folder, best)) is not None:
            print(f"  {line}")


def shown(line: RowSummary) -> dict[str, str]:
    """A row as it is printed."""

    def number(value: float | None) -> str:
        return "-" if value is None or math.isnan(value) else f"{value:.3g}"

    spread = "" if math.isnan(line.sensitivity_spread) else f" ± {line.sensitivity_spread:.2g}"
    return {
        "stable up to": number(line.edge.stable),
        "unstable from": number(line.edge.unstable),
        "learns up to": number(line.learning.stable),
        "sensitivity": number(line.sensitivity) + spread,
        "lowest loss": number(line.best),
        "at": number(line.best_at),
        "stable beyond": str(line.edge.islands) if line.edge.islands else "-",
    }
