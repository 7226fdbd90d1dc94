"""The report of a refined map: cells.json, and how many runs it took."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gradlab.base.command import command
from gradlab.base.json_lines import write_json
from gradlab.sweep.search.map_search import MapSearch, RefinedMap
from gradlab.sweep.search.quadtree import Cell, at_most, leaves

MIXED = "mixed"


def of_map(search: MapSearch, one: RefinedMap) -> dict[str, Any]:
    """A map as cells.json holds it; positions count from 0 to resolution along each axis."""
    o = search.option
    found = list(leaves(one.tried, o.resolution, o.coarse))
    return {
        "point": search.label(one.point),
        "overrides": list(one.point),
        "runs": len(set(one.jobs.values())),
        "grid": search.full,
        "classes": dict(Counter(map(str, {one.jobs[place]: seen for place, seen in one.tried.items()}.values()))),
        "unrefined": sum(not cell.agree and cell.size > 1 for cell in found),
        "checked": one.checked,
        "wrong": len(one.wrong),
        "wrong_at_most": at_most(len(one.wrong), one.checked) if one.checked else None,
        "skipped": one.skipped,
        "cells": [[c.i, c.j, c.size, cell_class(c, one)] for c in found],
        "points": [[i, j, str(seen), one.jobs[i, j]] for (i, j), seen in sorted(one.tried.items())],
    }


def cell_class(cell: Cell, one: RefinedMap) -> str | None:
    """The class of a cell; `mixed` of one with a boundary in it, None of one that was not tried."""
    if cell.agree:
        return str(one.tried[cell.i, cell.j])
    return MIXED if all(corner in one.tried for corner in cell.corners) else None


def sentences(found: dict[str, Any]) -> list[str]:
    """What is printed of a map."""
    runs, grid = found["runs"], found["grid"]
    classes = ", ".join(f"{count} {name}" for name, count in sorted(found["classes"].items()))
    lines = [f"{runs} runs of the {grid} of the full grid: {1 - runs / grid:.1%} saved ({classes})"]
    if found["checked"]:
        line = f"{found['wrong']} of {found['checked']} points checked at random among {found['skipped']} skipped ones"
        line += f" differ from their cell: at most {found['wrong_at_most']:.1%} of those are (95%)"
        lines.append(line + "; the cells around them were refined after that" * bool(found["wrong"]))
    if len(found["classes"]) == 1:
        lines.append("all of one class: the boundary is elsewhere, or narrower than a cell of the coarse grid")
    if found["unrefined"]:
        lines.append(f"{found['unrefined']} cells with a boundary in them were not refined to the end")
    return lines


def report(folder: Path, search: MapSearch, ended: str | None) -> None:
    """Write cells.json and print how many runs it took."""
    o = search.option
    maps = [of_map(search, one) for one in search.maps]
    settings = {"resolution": o.resolution, "coarse": o.coarse, "judge": o.judge, "ended": ended}
    content = settings | {"x": asdict(search.x), "y": asdict(search.y), "maps": maps}
    write_json(folder / "cells.json", content, indent=None)
    print(f"\n{search.x.field} x {search.y.field}, refined to {o.resolution} x {o.resolution} cells, by {o.judge}")
    for found in maps:
        for text in sentences(found):
            print(f"  {found['point']}: {text}" if len(maps) > 1 else f"  {text}")
    if ended:
        print(f"the map is not complete: {ended}; resume it with {command([f'resume={folder}'])}")
    print(f"cells: {folder / 'cells.json'}", flush=True)
