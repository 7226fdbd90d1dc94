"""A run's curves thinned out, from metrics.jsonl alone."""

from __future__ import annotations

import json
import math
import mmap
from pathlib import Path
from typing import Any

from gradlab.base.json_lines import number
from gradlab.base.regular_file import regular

CURVE = ("train/loss", "grad/norm")


def curve(path: Path, points: int = 200) -> list[list[float | None]]:
    """At most `points` updates of a file of metrics, evenly spaced through it, and always its first and last ones.

    [attempts, losses, norms], None where not finite. Other lines are not even read: a long run costs no more.
    """
    rows: list[tuple[float | None, ...]] = []
    for line in picked(path, points):
        if "train/loss" in line:
            found = (number(line.get(name)) for name in ("attempt", *CURVE))
            rows.append(tuple(v if v is not None and math.isfinite(v) else None for v in found))
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(1 + len(CURVE))]


def picked(path: Path, points: int) -> list[dict[str, Any]]:
    """Whole lines nearest to evenly spaced positions in a file of lines."""
    try:
        with open(regular(path), "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            end = text.rfind(b"\n")
            last = text.rfind(b"\n", 0, max(end, 0)) + 1
            starts = {text.rfind(b"\n", 0, end * i // (points - 1)) + 1 for i in range(points - 1)} | {last}
            kept = [text[start : text.find(b"\n", start)] for start in sorted(starts)] if end > 0 else []
        found: list[dict[str, Any]] = json.loads(b"[" + b",".join(kept) + b"]")
    except (OSError, ValueError):  # no such file, an empty one, or not of JSON
        return []
    return found
