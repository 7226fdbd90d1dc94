"""The report of a boundary search: edges over seeds and what moves them, as edges.json, edges.csv and tables."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict
from math import isinf
from pathlib import Path
from typing import Any

from gradlab.base import table
from gradlab.base.command import command
from gradlab.base.json_lines import write_json
from gradlab.sweep.search.boundary_search import BoundarySearch, SearchLine
from gradlab.sweep.search.edge_effects import edge_position, effect_row, effects, furthest, judged, median
from gradlab.sweep.search.lattice import Lattice


def number(value: float) -> str:
    return f"{value:.4g}"


def shown(position: float, lines: Sequence[SearchLine], on: Lattice) -> str:
    """An edge as it is printed."""
    if not isinf(position):
        return number(on.value(position))
    ends = [furthest(line, position) for line in lines if edge_position(line.edge) == position]
    larger = (position > 0) == (on.size > 0)
    sign = (">" if larger else "<") + "=" * (position > 0)
    return f"{sign} {number(on.value(min(ends) if position > 0 else max(ends)))}"


def remarks(line: SearchLine, on: Lattice) -> list[str]:
    """Remarks about an edge besides its position."""
    e, known = line.edge, line.known
    tried = [p for p, s in known.items() if s is not None]
    unjudged = [p for p, s in known.items() if s is None]

    def values(positions: Sequence[int]) -> str:
        return ", ".join(number(on.value(p)) for p in sorted(positions, key=on.value))

    found = []
    if tried and e.stable is None:
        found.append(f"not stable at any value tried, {values([min(tried), max(tried)])} and between")
    elif tried and e.first_unstable is None:
        found.append(f"stable {'up' if on.size > 0 else 'down'} to at least {values([max(tried)])}")
    elif e.stable is not None and e.first_unstable is not None and e.first_unstable - e.stable > 1:
        found.append(f"known only to be between {values([e.stable, e.first_unstable])}")
    if e.again:
        found.append(f"stable again at {values(e.again)}: there is more than one edge, and this is the first")
    if e.before:
        found.append(f"also unstable at {values(e.before)}, on the other side of the stable values")
    if e.stable is not None and line.seen[e.stable].diagnosis.get("ill"):
        text = f"not lost at {values([e.stable])}, but {line.seen[e.stable].why}"
        found.append(f"{text}: hydra.sweeper.judge=learns looks for values that train")
    if unjudged:
        found.append(f"no verdict at {values(unjudged)}: {line.seen[unjudged[0]].why}")
    return found


def row(search: BoundarySearch, lines: list[SearchLine]) -> dict[str, Any]:
    """A point: its edges by seed, their median and spread."""
    on = search.lattice
    counted = [line for line in lines if judged(line)]
    places = [edge_position(line.edge) for line in counted]
    ordered = sorted(places, reverse=on.size < 0)

    def value(position: float) -> float | None:
        return None if isinf(position) else on.value(position)

    seeds: dict[str, list[str]] = {}
    for line in lines:
        for text in remarks(line, on):
            seeds.setdefault(text, []).append(line.seed or "")
    return {
        "point": search.label(lines[0].point),
        "overrides": list(lines[0].point),
        "edge": value(median(places)) if places else None,
        "lowest": value(ordered[0]) if places else None,
        "highest": value(ordered[-1]) if places else None,
        "shown": [shown(p, counted, on) for p in (median(places), ordered[0], ordered[-1])] if places else ["-"] * 3,
        "seeds": len(counted),
        "runs": sum(len({s.job for s in line.seen.values()}) for line in lines),
        "says": [f"{t} (seed {', '.join(s)})" if len(lines) > 1 and s[0] else t for t, s in seeds.items()],
        "edges": [line_content(line, on) for line in lines],
    }


def line_content(line: SearchLine, on: Lattice) -> dict[str, Any]:
    e = line.edge
    tried = sorted((on.value(p), s, line.seen[p].job, line.seen[p].why) for p, s in line.known.items())
    return {
        "seed": line.seed,
        "stable": None if e.stable is None else on.value(e.stable),
        "lost": None if e.first_unstable is None else on.value(e.first_unstable),
        "stable_again": [on.value(p) for p in e.again],
        "lost_before": [on.value(p) for p in e.before],
        "tried": [dict(zip(("value", "stable", "job", "verdict"), t, strict=True)) for t in tried],
    }


def report(folder: Path, search: BoundarySearch, ended: str | None) -> None:
    """Write edges.json and edges.csv, and print both tables."""
    option, on = search.option, search.lattice
    rows = [row(search, [line for line in search.lines if line.point == point]) for point in search.points]
    moves = effects(search)
    settings = {k: v for k, v in asdict(option).items() if k != "_target_"} | {"step": on.step, "origin": on.origin}
    content = {"settings": settings, "ended": ended, "points": rows, "effects": moves}
    write_json(folder / "edges.json", content)
    with (folder / "edges.csv").open("w", newline="", encoding="utf-8") as file:
        names = ["point", "edge", "lowest", "highest", "seeds", "runs", "says"]
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(r | {"says": "; ".join(r["says"])} for r in rows)
    unit = "to within" if on.linear else "to a factor of"
    kind = {"stable": "completed, nothing lost", "learns": "stable, healthy, and has learnt"}[option.judge]
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
        print()
        table.show(title, names, [effect_row(m, on.linear) for m in moves])
    if ended:
        print(f"the search is not complete: {ended}; resume it with {command([f'resume={folder}'])}")
    print(f"edges: {folder / 'edges.csv'}", flush=True)
