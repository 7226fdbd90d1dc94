"""What a sweep's page holds beside its map: remedies compared, edges over seeds, what a refined map took."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradlab.base.json_lines import number, read_object
from gradlab.report.pages.page_template import short


def remedies(
    folder: Path, rows: Sequence[dict[str, Any]], compared: list[dict[str, Any]] | None, index: dict[str, int]
) -> dict[str, Any] | None:
    """The comparison as it is printed, with its effects as numbers; None of a sweep that compares none.

    index: of each job, its place among the page's.
    """
    from gradlab.remedies import comparison_table
    from gradlab.remedies.compared_job import compared_job
    from gradlab.remedies.comparison_rows import compare

    searched = (folder / "edges.json").is_file()  # its remedies have no rate in common
    if compared is None and not searched and any("remedy=" in row["overrides"] for row in rows):
        compared = compare([compared_job(folder, row["job"]) for row in rows])
    if not compared:
        return None
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in compared:
        groups.setdefault(row["overrides"], []).append(remedy(row, index))
    return {"note": comparison_table.NOTE, "groups": [{"overrides": k, "rows": v} for k, v in groups.items()]}


def remedy(row: dict[str, Any], index: dict[str, int]) -> dict[str, Any]:
    """One remedy."""
    from gradlab.config.remedy import changes
    from gradlab.remedies import comparison_table

    return {
        "remedy": row["remedy"],
        "judgement": row["judgement"],
        "cells": comparison_table.shown(row),
        "says": "; ".join(filter(None, (changes(row["changed"]), row["why"]))),
        "effects": {name: effect(row[name]) for name in ("survived", "improved")},
        "jobs": [[run["seed"], index[run["job"]]] for run in row["runs"]],
    }


def effect(found: dict[str, Any] | None) -> list[Any] | None:
    """[mean, low, high, size]"""
    return [short(found[name]) for name in ("mean", "low", "high", "size")] if found else None


def edges(folder: Path, index: dict[str, int]) -> dict[str, Any] | None:
    """The content of edges.json, as it is printed; None if there is none."""
    content = read_object(folder / "edges.json")
    if content is None:
        return None
    from gradlab.sweep.search.edge_effects import effect_row

    settings = content["settings"]
    linear = settings["scale"] == "linear"
    return {
        "field": settings["field"],
        "edge": settings["edge"],
        "judge": settings["judge"],
        "linear": linear,
        "step": short(number(settings["step"])),
        "ended": content["ended"],
        "points": [
            {"point": p["point"], "shown": p["shown"], "seeds": p["seeds"], "runs": p["runs"], "says": p["says"]}
            | {"lanes": [lane(e, index) for e in p["edges"]]}
            for p in content["points"]
        ],
        "effects": [effect_row(number(found), linear) for found in content["effects"]],
    }


def lane(found: dict[str, Any], index: dict[str, int]) -> dict[str, Any]:
    """One edge under one seed, with the values that were tried."""
    tried = [[short(number(t["value"]), 7), t["stable"], index.get(t["job"]), t["verdict"]] for t in found["tried"]]
    return {"seed": found["seed"], "stable": found["stable"], "lost": found["lost"], "tried": tried}


def cells(folder: Path) -> list[str]:
    """The sentences about a refined map."""
    content = read_object(folder / "cells.json")
    if content is None:
        return []
    from gradlab.sweep.search.map_report import sentences

    lines = [f"{m['point']}: {s}" if len(content["maps"]) > 1 else s for m in content["maps"] for s in sentences(m)]
    return lines + ([f"the map is not complete: {content['ended']}"] if content["ended"] else [])


PURPOSES = {"full": "to its end", "part": "a part", "shrink": "smaller", "seed": "confirmed", "without": "without it"}
"""What a trial of a fix was for."""


def fix(folder: Path, index: dict[str, int]) -> dict[str, Any] | None:
    """What came of a search for a cure, as it is printed, and its trials; None of any other sweep."""
    content = read_object(folder / "fix.json")
    if content is None or "trials" not in content:
        return None
    from gradlab.sweep.search.fix_report import lines

    title, *said = lines(number(content))
    trials = [
        [
            " ".join(t["change"]["overrides"]) if t["change"] else "unchanged",
            PURPOSES.get(t["purpose"], t["purpose"]),
            str(t["seed"]),
            t["verdict"] + f", but {t['but']}" * bool(t.get("but")),
            str(t["attempts"]),
            index.get(t["job"]),
        ]
        for t in content["trials"]
    ]
    said = [line for line in said if line != content["command"]]
    return {"title": title.removeprefix("== "), "says": said, "command": content["command"], "trials": trials}
