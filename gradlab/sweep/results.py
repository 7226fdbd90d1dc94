"""One row a job of a sweep, from its folder alone, whatever wrote it: results.csv, and what maps are made of."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

from gradlab.base.command import key
from gradlab.base.json_lines import number
from gradlab.runs.files import jobs_of, overrides_of, refused, swept, told_by, value
from gradlab.runs.measured import evaluated, lost_at, measured
from gradlab.runs.outcome_class import learns, outcome_class

FIELDS = ("job", "overrides", "verdict", "outcome", "eval/loss", "exit_code")
"""Columns that come first; then whatever was swept, then the numbers, then `why`."""
REPEATS = ("seed",)
"""Fields whose values repeat a point."""


def read(folder: Path) -> list[dict[str, Any]]:
    """Every job with its overrides, swept fields, verdict, numbers and exit code; a job that left nothing failed."""
    paths = jobs_of(folder)
    typed = [overrides_of(path) for path in paths]
    names = swept(typed)
    rows = []
    for path, overrides in zip(paths, typed, strict=True):
        told = told_by(path)
        values = {key(o): value(o.partition("=")[2]) for o in overrides}
        numbers = numbers_of(path, told)
        rows.append(
            {
                "job": str(path.relative_to(folder)),
                "overrides": " ".join(overrides),
                "verdict": told.get("verdict") or refused(told),
                "outcome": judged(told, numbers),
                "eval/loss": number(evaluated(path, told).get("eval/loss")),
                "exit_code": told.get("exit_code", 1),
            }
            | {name: values.get(name) for name in names}
            | numbers
            | {"why": why(told)}
        )
    return rows


def write(rows: list[dict[str, Any]], path: Path) -> None:
    """results.csv."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def numbers_of(path: Path, told: dict[str, Any]) -> dict[str, Any]:
    """What the run measured; `loss/final` of one that failed is infinite: there is no model to go on with."""
    kept = told.get("measured") or measured(path, lost_at(told))
    numbers = {name: number(v) for name, v in kept.items()}
    outcome = told.get("outcome") or {}
    if outcome.get("status") == "failed":
        numbers["loss/final"] = math.inf
    return numbers | {"planned": told.get("planned"), "seconds": outcome.get("seconds")}


def judged(told: dict[str, Any], numbers: dict[str, Any]) -> str:
    """The class of a run."""
    last, status = numbers["loss/final"], (told.get("outcome") or {}).get("status")
    return outcome_class(told.get("verdict"), status, learns(told), math.nan if last is None else last)


def why(told: dict[str, Any]) -> str:
    """What ended the run, or else what was seen."""
    return (told.get("outcome") or {}).get("error") or told.get("sentence") or "left no diagnosis.json"
