"""Edges over seeds, what moves them, and how they are said: edges.json, edges.csv and a table."""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from math import exp, inf, isinf, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradlab import table
from gradlab.command import command
from gradlab.effect import SEEDS, T95
from gradlab.loggers.local import plain, write_whole
from gradlab.sweep.axes import Point, axes, given, is_number, label, without
from gradlab.sweep.edge import Edge, Line

if TYPE_CHECKING:
    from gradlab.sweep.boundary import Boundary, Lane

BASELINE = "none"
TINY = 1e-9


def place(found: Edge) -> float:
    """Position of the last stable value; inf if nothing is lost, -inf if all is."""
    if found.stable is None:
        return -inf
    return inf if found.lost is None else found.stable


def median(places: Sequence[float]) -> float:
    """Of positions that may be infinite; between two of which one is, that one."""
    ordered, n = sorted(places), len(places)
    low, high = ordered[(n - 1) // 2], ordered[n // 2]
    if isinf(low) or isinf(high):
        return low if isinf(low) else high
    return (low + high) / 2


@dataclass(frozen=True)
class Moved:
    """By how much an edge moves, paired over seeds; factors, or on a linear scale differences."""

    mean: float
    """Over the seeds; of factors the geometric one."""
    low: float | None
    """95% interval of the mean by Student's t, widened by the tolerance; None of fewer than three seeds."""
    high: float | None
    seeds: int
    bound: str
    """at least, at most: where one of the edges with it lies beyond the values tried."""
    direction: int
    """1 to larger values, -1 to smaller ones, 0 not shown."""


def moved(pairs: Sequence[tuple[float, float, int]], on: Line) -> Moved | None:
    """From positions without and with; None where none can be compared.

    The third number of each is the furthest position tried with, which stands for an edge beyond it.
    """
    pairs = [pair for pair in pairs if not isinf(pair[0])]
    beyond = {b for _, b, _ in pairs if isinf(b)}
    if not pairs or len(beyond) > 1:
        return None
    steps = [((end if isinf(b) else b) - a) * on.size for a, b, end in pairs]
    mean, wide = statistics.fmean(steps), abs(on.size)
    low = high = None
    if beyond:
        larger = (inf in beyond) == (on.size > 0)
        bound, low, high = ("at least", min(steps), None) if larger else ("at most", None, max(steps))
        direction = all(s > wide for s in steps) - all(s < -wide for s in steps)
        return Moved(unit(mean, on), unit(low, on), unit(high, on), len(steps), bound, direction)
    if len(steps) >= SEEDS:
        margin = T95[min(len(steps) - 1, len(T95)) - 1] * statistics.stdev(steps) / sqrt(len(steps)) + wide
        low, high = mean - margin, mean + margin
        direction = (low > TINY) - (high < -TINY)
    else:
        direction = all(s > wide + TINY for s in steps) - all(s < -wide - TINY for s in steps)
    return Moved(unit(mean, on), unit(low, on), unit(high, on), len(steps), "", direction)


def unit(step: Any, on: Line) -> Any:
    """A factor, or on a linear scale a difference."""
    return step if step is None or on.linear else exp(step)


def judged(lane: Lane) -> bool:
    """Whether any of its runs gave a verdict."""
    return any(s is not None for s in lane.known.values())


def number(value: float) -> str:
    return f"{value:.4g}"


def end(lane: Lane, position: float) -> int:
    """The furthest position tried in the direction of an infinite one."""
    tried = [p for p, s in lane.known.items() if s is not None]
    return max(tried) if position > 0 else min(tried)


def shown(position: float, lanes: Sequence[Lane], on: Line) -> str:
    """An edge as it is printed."""
    if not isinf(position):
        return number(on.value(position))
    ends = [end(lane, position) for lane in lanes if place(lane.edge) == position]
    larger = (position > 0) == (on.size > 0)
    sign = (">" if larger else "<") + "=" * (position > 0)
    return f"{sign} {number(on.value(min(ends) if position > 0 else max(ends)))}"


def says(lane: Lane, on: Line) -> list[str]:
    """What is to be known of an edge besides where it is."""
    e, known = lane.edge, lane.known
    tried = [p for p, s in known.items() if s is not None]
    unjudged = [p for p, s in known.items() if s is None]

    def values(positions: Sequence[int]) -> str:
        return ", ".join(number(on.value(p)) for p in sorted(positions, key=on.value))

    lines = []
    if tried and e.stable is None:
        lines.append(f"not stable at any value tried, {values([min(tried), max(tried)])} and between")
    elif tried and e.lost is None:
        lines.append(f"stable up to at least {values([max(tried)])}" if on.size > 0 else at_least(max(tried), on))
    elif e.stable is not None and e.lost is not None and e.lost - e.stable > 1:
        lines.append(f"known only to be between {values([e.stable, e.lost])}")
    if e.again:
        lines.append(f"stable again at {values(e.again)}: there is more than one edge, and this is the first")
    if e.before:
        lines.append(f"not stable at {values(e.before)} either, on the other side")
    if e.stable is not None and lane.seen[e.stable].told.get("ill"):
        says = f"not lost at {values([e.stable])}, but {lane.seen[e.stable].why}"
        lines.append(f"{says}: hydra.sweeper.judge=learns looks for values that train")
    if unjudged:
        lines.append(f"no verdict at {values(unjudged)}: {lane.seen[unjudged[0]].why}")
    return lines


def at_least(position: int, on: Line) -> str:
    return f"stable down to at least {number(on.value(position))}"


def row(search: Boundary, lanes: list[Lane]) -> dict[str, Any]:
    """A point: its edges by seed, their median and spread."""
    on = search.line
    counted = [lane for lane in lanes if judged(lane)]
    places = [place(lane.edge) for lane in counted]
    ordered = sorted(places, reverse=on.size < 0)

    def value(position: float) -> float | None:
        return None if isinf(position) else on.value(position)

    remarks: dict[str, list[str]] = {}
    for lane in lanes:
        for text in says(lane, on):
            remarks.setdefault(text, []).append(lane.seed or "")
    return {
        "point": search.label(lanes[0].point),
        "overrides": list(lanes[0].point),
        "edge": value(median(places)) if places else None,
        "lowest": value(ordered[0]) if places else None,
        "highest": value(ordered[-1]) if places else None,
        "shown": [shown(p, counted, on) for p in (median(places), ordered[0], ordered[-1])] if places else ["-"] * 3,
        "seeds": len(counted),
        "runs": sum(len({s.job for s in lane.seen.values()}) for lane in lanes),
        "says": [f"{t} (seed {', '.join(s)})" if len(lanes) > 1 and s[0] else t for t, s in remarks.items()],
        "edges": [of_lane(lane, on) for lane in lanes],
    }


def of_lane(lane: Lane, on: Line) -> dict[str, Any]:
    e = lane.edge
    tried = sorted((on.value(p), s, lane.seen[p].job, lane.seen[p].why) for p, s in lane.known.items())
    return {
        "seed": lane.seed,
        "stable": None if e.stable is None else on.value(e.stable),
        "lost": None if e.lost is None else on.value(e.lost),
        "stable_again": [on.value(p) for p in e.again],
        "lost_before": [on.value(p) for p in e.before],
        "tried": [dict(zip(("value", "stable", "job", "verdict"), t, strict=True)) for t in tried],
    }


def effects(search: Boundary) -> list[dict[str, Any]]:
    """For each named axis: by how much each of its values moves the edge against `none`, or against its first."""
    found = []
    for name, values in axes(search.points).items():
        if all(map(is_number, values)):
            continue
        base = BASELINE if BASELINE in values else values[0]
        lanes = {(without(lane.point, name), given(lane.point, name), lane.seed): lane for lane in search.lanes}
        pairs: dict[tuple[Point, str], list[tuple[float, float, int]]] = {}
        for (rest, mine, seed), lane in lanes.items():
            before = lanes.get((rest, base, seed))
            if mine is None or mine == base or before is None:
                continue
            mates = pairs.setdefault((rest, mine), [])
            if judged(before) and judged(lane):
                after = place(lane.edge)
                mates.append((place(before.edge), after, end(lane, after)))
        for (rest, mine), mates in pairs.items():
            others = label(rest, [n for n in search.names if n != name])
            m = moved(mates, search.line)
            common = {"axis": name, "value": mine, "against": base, "point": others}
            found.append(common | (asdict(m) if m else dict.fromkeys(f.name for f in fields(Moved))))
    return found


def told(effect: dict[str, Any], linear: bool) -> list[str]:
    """An effect as it is printed."""
    if effect["mean"] is None:
        return ["-", "-", "0", "not comparable: an edge lies beyond the values tried, or there is none"]
    form = (lambda v: f"{v:+.3g}") if linear else (lambda v: f"x{v:.3g}")
    interval = "-" if None in (effect["low"], effect["high"]) else f"[{form(effect['low'])}, {form(effect['high'])}]"
    words = {1: "moves it up", -1: "moves it down", 0: "not shown"}[effect["direction"]]
    return [f"{effect['bound']} {form(effect['mean'])}".strip(), interval, str(effect["seeds"]), words]


def report(folder: Path, search: Boundary, ended: str | None) -> None:
    """Write edges.json and edges.csv, and print both tables."""
    option, on = search.option, search.line
    rows = [row(search, [lane for lane in search.lanes if lane.point == point]) for point in search.points]
    moves = effects(search)
    settings = {k: v for k, v in asdict(option).items() if k != "_target_"} | {"step": on.step, "origin": on.origin}
    content = {"settings": settings, "ended": ended, "points": rows, "effects": moves}
    write_whole(folder / "edges.json", json.dumps(plain(content), indent=2, allow_nan=False) + "\n")
    with (folder / "edges.csv").open("w", newline="") as file:
        names = ["point", "edge", "lowest", "highest", "seeds", "runs", "says"]
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(r | {"says": "; ".join(r["says"])} for r in rows)
    unit = "to within" if on.linear else "to a factor of"
    kind = {"stable": "completed, nothing lost", "learns": "stable, not ill, and the loss fell"}[option.judge]
    size = abs(on.step) if on.linear else max(on.step, 1 / on.step)
    print()
    cells = [[r["point"], *r["shown"], f"{r['seeds']}", f"{r['runs']}"] for r in rows]
    title = f"{option.edge} {option.field} that is stable, {unit} {size:.3g} ({option.judge}: {kind})"
    table.show(title, ["point", "median", "lowest", "highest", "seeds", "runs"], cells, ["runs"])
    for r in rows:
        for text in r["says"]:
            print(f"  {r['point']}: {text}" if len(rows) > 1 else f"  {text}")
    if moves:
        names = ["field", "value", "edge moves by", "95% interval", "seeds", ""]
        title = "what moves the edge, under the same seed; intervals are widened by the tolerance"
        cells = [
            [
                m["axis"] + f" ({m['point']})" * (m["point"] != "-"),
                f"{m['value']} / {m['against']}",
                *told(m, on.linear),
            ]
            for m in moves
        ]
        print()
        table.show(title, names, cells)
    if ended:
        print(f"the search is not complete: {ended}; it goes on with {command([f'resume={folder}'])}")
    print(f"edges: {folder / 'edges.csv'}", flush=True)
