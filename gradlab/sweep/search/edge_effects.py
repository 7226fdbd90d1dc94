"""By how much the value of a named axis moves the edge, under the same seed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from math import exp, inf, isinf
from typing import Any

from gradlab.remedies.paired_effect import SEEDS, half_width
from gradlab.sweep.grid.axes import Point, axes, given, is_number, label, without
from gradlab.sweep.search.boundary_search import BoundarySearch, SearchLine
from gradlab.sweep.search.edge import Edge
from gradlab.sweep.search.lattice import Lattice

BASELINE = "none"
TINY = 1e-9


def edge_position(found: Edge) -> float:
    """Position of the last stable value; inf if no value is unstable, -inf if all are."""
    if found.stable is None:
        return -inf
    return inf if found.first_unstable is None else found.stable


def median(places: Sequence[float]) -> float:
    """The median of positions, which may be infinite: half-way to an infinite one is that one."""
    ordered, n = sorted(places), len(places)
    low, high = ordered[(n - 1) // 2], ordered[n // 2]
    if isinf(low) or isinf(high):
        return low if isinf(low) else high
    return (low + high) / 2


@dataclass(frozen=True)
class EdgeEffect:
    """The distance by which an edge moves, paired over seeds: a factor, or on a linear scale a difference."""

    mean: float
    """Over the seeds; of factors the geometric mean."""
    low: float | None
    """95% interval of the mean by Student's t, widened by the tolerance; None of fewer than three seeds."""
    high: float | None
    seeds: int
    bound: str
    """at least, at most: where one of the edges with it lies beyond the values tried."""
    direction: int
    """1 to larger values, -1 to smaller ones, 0 not shown."""


def paired_effect(pairs: Sequence[tuple[float, float, int]], on: Lattice) -> EdgeEffect | None:
    """From positions without and with; None where none can be compared.

    The third number of each is the furthest position tried with, which stands for an edge beyond it.
    """
    pairs = [pair for pair in pairs if not isinf(pair[0])]
    beyond = {b for _, b, _ in pairs if isinf(b)}
    if not pairs or len(beyond) > 1:
        return None
    steps = [((end if isinf(b) else b) - a) * on.size for a, b, end in pairs]
    mean, wide = statistics.fmean(steps), abs(on.size)
    bound, low, high = "", None, None
    if beyond:
        larger = (inf in beyond) == (on.size > 0)
        bound, low, high = ("at least", min(steps), None) if larger else ("at most", None, max(steps))
        direction = all(s > wide for s in steps) - all(s < -wide for s in steps)
    elif len(steps) >= SEEDS:
        margin = half_width(steps) + wide
        low, high = mean - margin, mean + margin
        direction = (low > TINY) - (high < -TINY)
    else:
        direction = all(s > wide + TINY for s in steps) - all(s < -wide - TINY for s in steps)
    return EdgeEffect(unit(mean, on), unit(low, on), unit(high, on), len(steps), bound, direction)


def unit(step: Any, on: Lattice) -> Any:
    """A factor, or on a linear scale a difference."""
    return step if step is None or on.linear else exp(step)


def judged(line: SearchLine) -> bool:
    """Whether any of its runs gave a verdict."""
    return any(s is not None for s in line.known.values())


def furthest(line: SearchLine, position: float) -> int:
    """The furthest position tried in the direction of an infinite one."""
    tried = [p for p, s in line.known.items() if s is not None]
    return max(tried) if position > 0 else min(tried)


def effects(search: BoundarySearch) -> list[dict[str, Any]]:
    """For each named axis: by how much each of its values moves the edge against `none`, or against its first."""
    found = []
    for name, values in axes(search.points).items():
        if all(map(is_number, values)):
            continue
        base = BASELINE if BASELINE in values else values[0]
        lines = {(without(line.point, name), given(line.point, name), line.seed): line for line in search.lines}
        pairs: dict[tuple[Point, str], list[tuple[float, float, int]]] = {}
        for (rest, mine, seed), line in lines.items():
            before = lines.get((rest, base, seed))
            if mine is None or mine == base or before is None:
                continue
            mates = pairs.setdefault((rest, mine), [])
            if judged(before) and judged(line):
                after = edge_position(line.edge)
                mates.append((edge_position(before.edge), after, furthest(line, after)))
        for (rest, mine), mates in pairs.items():
            others = label(rest, [n for n in search.names if n != name])
            m = paired_effect(mates, search.lattice)
            common = {"axis": name, "value": mine, "against": base, "point": others}
            found.append(common | (asdict(m) if m else dict.fromkeys(f.name for f in fields(EdgeEffect))))
    return found


def effect_row(effect: dict[str, Any], linear: bool) -> list[str]:
    """An effect as it is printed: field, values, by how much, interval, seeds, and what that says."""
    of = [
        effect["axis"] + f" ({effect['point']})" * (effect["point"] != "-"),
        f"{effect['value']} / {effect['against']}",
    ]
    if effect["mean"] is None:
        return [*of, "-", "-", "0", "not comparable: an edge lies beyond the values tried, or there is none"]

    def form(value: float) -> str:
        return f"{value:+.3g}" if linear else f"x{value:.3g}"

    interval = "-" if None in (effect["low"], effect["high"]) else f"[{form(effect['low'])}, {form(effect['high'])}]"
    words = {1: "moves it up", -1: "moves it down", 0: "not shown"}[effect["direction"]]
    return [*of, f"{effect['bound']} {form(effect['mean'])}".strip(), interval, str(effect["seeds"]), words]
