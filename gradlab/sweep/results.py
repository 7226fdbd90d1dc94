"""One row a job of a sweep, from its folder alone, whatever wrote it: results.csv, and what maps are made of."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradlab.command import key
from gradlab.loggers.local import number
from gradlab.sweep.measure import lost_at, measured
from gradlab.sweep.outcome import outcome_class

FIELDS = ("job", "overrides", "verdict", "outcome", "eval/loss", "exit_code")
"""Columns that come first; then whatever was swept, then the numbers, then `why`."""
PLAIN = re.compile(r"- \+{0,2}[a-zA-Z][^'\"#:\s]*")
"""A line of overrides.yaml that means what it says."""
REFUSED = "does not apply"
"""Stands for the verdict of a job whose remedy changes nothing."""
REPEATS = ("seed",)
"""Fields whose values repeat a point."""


def jobs_of(folder: Path) -> list[Path]:
    """The folders of a sweep's jobs, in their order."""
    found = (p.parent.parent for p in folder.rglob(".hydra/overrides.yaml"))
    return sorted(found, key=lambda p: (not p.name.isdigit(), int(p.name) if p.name.isdigit() else 0, p.name))


def read(folder: Path) -> list[dict[str, Any]]:
    """Every job with its overrides, swept fields, verdict, numbers and exit code; a job that left nothing failed."""
    paths = jobs_of(folder)
    typed = [overrides_of(path) for path in paths]
    names = swept(typed)
    rows = []
    for path, overrides in zip(paths, typed, strict=True):
        told = told_by(path)
        values = {key(o): value(o.partition("=")[2]) for o in overrides}
        evaluated = [number(e["eval/loss"]) for e in (told.get("outcome") or {}).get("eval") or [] if e.get("epoch")]
        numbers = numbers_of(path, told)
        rows.append(
            {
                "job": str(path.relative_to(folder)),
                "overrides": " ".join(overrides),
                "verdict": told.get("verdict") or refused(told),
                "outcome": judged(told, numbers, evaluated),
                "eval/loss": evaluated[-1] if evaluated else None,
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


def overrides_of(path: Path) -> list[str]:
    """As typed; most files are read without YAML's slow parser."""
    text = (path / ".hydra" / "overrides.yaml").read_text()
    lines = text.splitlines()
    if all(PLAIN.fullmatch(line) for line in lines):
        return [line[2:] for line in lines]
    import yaml

    return [str(o) for o in yaml.safe_load(text) or []]


def told_by(path: Path) -> dict[str, Any]:
    """diagnosis.json; empty of a job that was killed."""
    try:
        found = json.loads((path / "diagnosis.json").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def swept(overrides: Sequence[Sequence[str]]) -> list[str]:
    """Fields that are not the same in every job, in the order of the command."""
    values: dict[str, list[str | None]] = {}
    for i, job in enumerate(overrides):
        for o in job:
            values.setdefault(key(o), [None] * len(overrides))[i] = o.partition("=")[2]
    return [name for name, given in values.items() if len(set(given)) > 1]


def value(text: str) -> Any:
    """An override's value: a number where it is one, else as typed."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return {"true": True, "false": False, "null": None}.get(text, text)


def numbers_of(path: Path, told: dict[str, Any]) -> dict[str, Any]:
    """What the run measured; `loss/final` of one that failed is infinite: there is no model to go on with."""
    kept = told.get("measured") or measured(path, lost_at(told))
    numbers = {name: number(v) for name, v in kept.items()}
    outcome = told.get("outcome") or {}
    if outcome.get("status") == "failed":
        numbers["loss/final"] = math.inf
    return numbers | {"planned": told.get("planned"), "seconds": outcome.get("seconds")}


def judged(told: dict[str, Any], numbers: dict[str, Any], evaluated: list[float]) -> str:
    """The class of a run."""
    first, best, last = (
        math.nan if numbers[f"loss/{name}"] is None else numbers[f"loss/{name}"]
        for name in ("initial", "best", "final")
    )
    constant = number((told.get("evidence") or {}).get("loss_of_constant_answer"))
    status, seen = (told.get("outcome") or {}).get("status"), [v for v in evaluated if v == v]
    return outcome_class(told.get("verdict"), status, first, best, last, constant, min(seen, default=math.nan))


def refused(told: dict[str, Any]) -> str | None:
    """What stands for the verdict of a job whose remedy does not apply."""
    remedy = told.get("remedy")
    return REFUSED if remedy and not remedy["applies"] else None


def why(told: dict[str, Any]) -> str:
    """What ended the run, or else what was seen."""
    return (told.get("outcome") or {}).get("error") or told.get("sentence") or "left no diagnosis.json"
