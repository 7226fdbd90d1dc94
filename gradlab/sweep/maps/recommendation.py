"""The summary of each row of a map (edge, sensitivity), and the recommended point."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradlab.runs.outcome_class import NAMES, STABLE, UNENDED, UNJUDGED
from gradlab.sweep.maps.axis import Axis, label
from gradlab.sweep.maps.grid import Grid, MapPoint
from gradlab.sweep.maps.stability import RowEdge, row_edge, sensitivity

FIRST_UNENDED = NAMES.index(UNENDED[0])
"""The place of the first class of runs that have not ended."""
MARGIN = 2.0
"""Factor by which a recommended rate stays below the edge."""
RISKIER = (
    *("optimizer.lr", "clip.max_norm", "clip.max_value", "clip.factor", "noise.eta"),
    *("model.gain", "model.layers", "model.depth", "data.length"),
)
"""Fields of which more is less stable, so that an edge lies beyond the largest stable value."""
AS_GOOD = 0.05
"""Losses that differ by less than this fraction count as equal."""


@dataclass(frozen=True)
class RowSummary:
    """One row of a map."""

    y: Any
    edge: RowEdge
    """Where stability ends."""
    learning: RowEdge
    """Where learning ends, perhaps before stability does."""
    sensitivity: float
    """To the rate: a difference of losses."""
    sensitivity_spread: float
    """Standard deviation of that between repeats; NaN with fewer than two."""
    best: float
    """The lowest final loss of its stable points; NaN where there is none."""
    best_at: float
    pick: int | None
    """Column of what `picked` chose; None where nothing learns under every repeat."""
    room: float
    """How far below the nearer edge that is, as a factor (a difference, on a linear axis); infinite if unknown."""


def summarize_rows(grid: Grid, margin: float = MARGIN) -> list[RowSummary]:
    """Every row of a grid whose x is numeric."""
    x, log = np.array(grid.x.values, dtype=float), grid.x.log
    stable, learnt, loss = grid.array("stable"), grid.array("learnt"), grid.array("loss/final")
    initial, outcome = grid.array("loss/initial"), grid.array("outcome")
    found = []
    for i, y in enumerate(grid.y.values):
        ends, learns = row_edge(x, stable[i], log), row_edge(x, learnt[i], log)
        kept = np.where(stable[i] >= 1, loss[i], np.nan)
        at = int(np.nanargmin(kept)) if not np.isnan(kept).all() else None
        began = float(np.nanmedian(initial[i])) if not np.isnan(initial[i]).all() else math.inf
        # An unstable run counts as one at its first loss, whatever was measured last; unended ones are left out.
        final = np.where(stable[i] < 1, np.inf, np.where(outcome[i] < FIRST_UNENDED, loss[i], np.nan))
        alone = [sensitivity(grid.x.places, one, began) for one in repeats(grid, i)]
        spread = float(np.std(alone, ddof=1)) if len(alone) > 1 else math.nan
        pick, room = picked(x, learnt[i], final, ends, learns, margin, log)
        best = (math.nan, math.nan) if at is None else (float(loss[i, at]), float(x[at]))
        mean = sensitivity(grid.x.places, final, began)
        found.append(RowSummary(y, ends, learns, mean, spread, *best, pick, room))
    return found


def repeats(grid: Grid, i: int) -> list[np.ndarray]:
    """The final losses of a row under each seed."""
    found: dict[Any, np.ndarray] = {}
    for (row, column), point in grid.points.items():
        for job in point.jobs if row == i else ():
            losses = found.setdefault(job.get("seed"), np.full(len(grid.x.values), np.nan))
            if job["outcome"] in STABLE:
                losses[column] = math.nan if job.get("loss/final") is None else job["loss/final"]
            elif job["outcome"] not in UNJUDGED:
                losses[column] = math.inf
    return list(found.values())


def picked(
    x: np.ndarray, learnt: np.ndarray, loss: np.ndarray, ends: RowEdge, learns: RowEdge, margin: float, log: bool
) -> tuple[int | None, float]:
    """The recommended column and its distance to the edge: the largest value that learns and keeps the margin below
    the edge; if none does, the smallest that learns; if no edge is known, the one of the lowest loss.

    On a linear axis the margin is one value of the sweep.
    """
    top = min((v for v in (ends.stable, learns.stable) if v is not None), default=None)
    good = np.flatnonzero(learnt >= 1)
    if top is None or not len(good := good[x[good] <= top]):
        return None, math.inf
    limit = min((v for v in (ends.value, learns.value) if v is not None), default=math.inf)
    if math.isinf(limit):
        return int(good[np.argmin(loss[good])]), math.inf
    if log:
        inside = good[x[good] * margin <= limit * (1 + 1e-9)]
        pick = int(inside[-1] if len(inside) else good[0])
        return pick, limit / float(x[pick])
    inside = good[x[good] < top]
    pick = int(inside[-1] if len(inside) else good[0])
    return pick, limit - float(x[pick])


@dataclass(frozen=True)
class Recommendation:
    """A point of the map, and why."""

    says: str
    cell: MapPoint | None
    values: dict[str, Any]


def recommend(grid: Grid, rows: list[RowSummary], margin: float = MARGIN) -> Recommendation:
    """The point to use: of each row its pick; of the rows that with the lowest loss there, of equals the most room."""
    losses, chosen = grid.array("loss/final"), [i for i, row in enumerate(rows) if row.pick is not None]
    if not chosen:
        short = sum(cell.outcome == "too_short" for cell in grid.points.values())
        why = f" ({short} of {len(grid.points)} points have too few updates to be judged)" if short else ""
        return Recommendation(f"no point learns under every seed: nothing to recommend{why}", None, {})
    source, here = grid.source(), {i: float(losses[i, rows[i].pick]) for i in chosen}
    initial, slack = float(np.nanmedian(grid.array("loss/initial"))), AS_GOOD * abs(min(here.values()))
    equals = [i for i in chosen if here[i] <= min(here.values()) + slack]
    best = max(equals, key=lambda i: (end_of(rows[i]), -here[i]))
    row, column = rows[best], rows[best].pick
    assert column is not None
    at = source[best, column]
    cell = grid.points[int(at[0]), int(at[1])]
    values = {grid.x.name: grid.x.values[int(at[1])]} | (
        {grid.y.name: grid.y.values[int(at[0])]} if grid.y.name else {}
    )
    seeds = len(cell.jobs)
    under = f" under all {seeds} repeats" if seeds > 1 else ""
    says = f"{', '.join(f'{k}={label(v)}' for k, v in values.items())}: {keeps(row, margin, under, grid.x)}"
    says += f"; its loss ends at {here[best]:.3g} (from {initial:.3g})"
    lowest = min((r for r in rows if not math.isnan(r.best)), key=lambda r: r.best)
    if lowest.best < here[best] - slack:
        where = f"{grid.x.name}={label(lowest.best_at)}" + (f", {grid.y.name}={label(lowest.y)}" if grid.y.name else "")
        says += f", the lowest of the map is {lowest.best:.3g} at {where}"
    return Recommendation(says + matters(grid, rows), cell, values)


def end_of(row: RowSummary) -> float:
    """How far a row reaches."""
    return math.inf if row.edge.unstable is None else row.edge.value or -math.inf


def keeps(row: RowSummary, margin: float, under: str, x: Axis) -> str:
    """Why a row's pick is its pick."""
    if math.isinf(row.room):
        return f"of those that learn{under} the one of the lowest loss; {open_end(row.edge, x)}"
    stops = row.learning.value is not None and (row.edge.value is None or row.learning.value < row.edge.value)
    ends = row.learning if stops else row.edge
    between = (
        f"the edge of {'learning' if stops else 'stability'}, between {label(ends.stable)} and {label(ends.unstable)}"
    )
    if not x.log:
        return f"the largest that learns{under} one value below {between}"
    if row.room < margin * (1 - 1e-9):
        return f"no value that learns{under} keeps a factor {margin:g}; this one is {row.room:.2g} below {between}"
    return f"the largest run that learns{under} a factor {margin:g} or more ({row.room:.2g}) below {between}"


def open_end(found: RowEdge, x: Axis) -> str:
    """Where the edge may lie in a row that has none towards larger values."""
    first, last = label(x.values[0]), label(found.stable)
    if found.stable != x.values[-1]:
        return f"nothing above {x.name}={last} was judged"
    if x.name in RISKIER:
        return f"the sweep does not reach the edge, which lies above {x.name}={last}: try higher ones"
    if found.before is not None:  # the other way round: what is too small is unstable
        return f"unstable at {x.name}={label(found.before)} and below; stable up to {last}"
    return f"the sweep reaches no edge from {x.name}={first} to {last}"


def matters(grid: Grid, rows: list[RowSummary]) -> str:
    """A sentence on how far the second axis moves the edge."""
    known = [(row.edge.value, row.y) for row in rows if row.edge.value is not None]
    if not grid.y.name or len(known) < 2 or not grid.x.log:
        return ""
    (low, at_low), (high, at_high) = min(known, key=lambda k: k[0]), max(known, key=lambda k: k[0])
    step = float(np.diff(grid.x.places).max())
    if math.log10(high / low) <= step * 1.01:
        return f". {grid.y.name} moves the edge by no more than a step of the sweep ({low:.2g} to {high:.2g})"
    return f". {grid.y.name} moves the edge from {low:.2g} (at {label(at_low)}) to {high:.2g} (at {label(at_high)})"
