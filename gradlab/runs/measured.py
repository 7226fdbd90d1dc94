"""A run's numbers for a map, and its curves thinned out, from metrics.jsonl alone."""

from __future__ import annotations

import json
import math
import mmap
from pathlib import Path
from typing import Any

from gradlab.base.json_lines import number
from gradlab.base.statistics import quantile
from gradlab.measure.levels import Levels
from gradlab.runs.outcome_class import LOST

CURVE = ("train/loss", "grad/norm")


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Every whole line; one call of the parser, which is thrice as fast as one a line."""
    try:
        text = path.read_bytes()
    except OSError:
        return []
    whole = text[: text.rfind(b"\n") + 1].rstrip()
    return json.loads(b"[" + whole.replace(b"\n", b",") + b"]") if whole else []


def measured(folder: Path, began: int | None = None) -> dict[str, Any]:
    """What is kept of a run's metrics. began: the update (attempt) with which it began to be lost."""
    updates = [line for line in lines_of(folder / "metrics.jsonl") if "train/loss" in line]
    losses = Levels(number(line["train/loss"]) for line in updates)
    norms = [v for v in (number(line["grad/norm"]) for line in updates) if math.isfinite(v)]
    last = updates[-1] if updates else {}
    applied = last.get("update", 0)
    return {
        "loss/initial": losses.initial if math.isfinite(losses.initial) else None,
        "loss/best": losses.best if math.isfinite(losses.best) else None,
        "loss/final": losses.final if updates else None,
        "grad/norm_median": quantile(norms, 0.5) if norms else None,
        "grad/norm_p95": quantile(norms, 0.95) if norms else None,
        "grad/norm_max": max(norms, default=None),
        "clip/fraction": last.get("clip/fraction"),
        "updates": applied,
        "survived": applied if began is None else sum(not x["update/skipped"] for x in updates if x["attempt"] < began),
        "skipped": sum(line["update/skipped"] for line in updates),
    }


def evaluated(folder: Path, told: dict[str, Any]) -> dict[str, Any]:
    """The last evaluation since training began, from the run's metrics where its end did not say it; empty if none."""
    seen = (told.get("outcome") or {}).get("eval")
    if seen is None:
        seen = [line for line in lines_of(folder / "metrics.jsonl") if "eval/loss" in line]
    return next((e for e in reversed(seen) if e.get("epoch")), {})


def lost_at(told: dict[str, Any]) -> int | None:
    """The attempt with which a run began to be lost, by its diagnosis.json; None of one that was not, or not seen."""
    code, findings = told.get("verdict"), told.get("findings") or []
    return next((f["began"] for f in findings if f["code"] == code), None) if code in LOST else None


def curve(path: Path, points: int = 200) -> list[list[float | None]]:
    """At most `points` updates of a run, evenly spaced through its file, and always its first and last ones.

    [attempts, losses, norms], None where not finite. Other lines are not even read: a long run costs no more.
    """
    rows: list[tuple[float | None, ...]] = []
    for line in picked(path, points):
        if "train/loss" in line:
            found = (number(line.get(name)) for name in ("attempt", *CURVE))
            rows.append(tuple(v if v is not None and math.isfinite(v) else None for v in found))
    return [list(column) for column in zip(*rows)] if rows else [[] for _ in range(1 + len(CURVE))]


def picked(path: Path, points: int) -> list[dict[str, Any]]:
    """Whole lines nearest to evenly spaced places in a file of lines."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            end = text.rfind(b"\n")
            last = text.rfind(b"\n", 0, max(end, 0)) + 1
            starts = {text.rfind(b"\n", 0, end * i // (points - 1)) + 1 for i in range(points - 1)} | {last}
            kept = [text[start : text.find(b"\n", start)] for start in sorted(starts)] if end > 0 else []
    except (OSError, ValueError):  # no such file, or an empty one
        return []
    return json.loads(b"[" + b",".join(kept) + b"]")
