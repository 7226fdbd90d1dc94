"""A long run in few lines: which of them show what all of them show."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from gradlab.base.json_lines import number

KEYS = ("train/loss", "grad/norm", "update/ratio")
"""Metrics whose extremes are kept."""


def thinned(lines: Sequence[bytes], most: int, keep: Callable[[Sequence[dict[str, Any]]], set[int]]) -> list[bytes]:
    """At most about `most` of the lines, in their order: those that `keep` names, first and last, and some evenly."""
    if len(lines) <= most:
        return list(lines)
    chosen = keep([json.loads(line) for line in lines]) | {0, len(lines) - 1}
    if len(chosen) > most:
        ordered = sorted(chosen)
        chosen = {ordered[i] for i in even(len(ordered), most)}
    else:
        chosen |= set(even(len(lines), most - len(chosen)))
    return [lines[i] for i in sorted(chosen)]


def even(count: int, wanted: int) -> list[int]:
    """At most so many indices spread evenly over range(count), first and last among them."""
    if wanted <= 1 or count <= wanted:
        return list(range(min(count, wanted)))
    return sorted({round(i * (count - 1) / (wanted - 1)) for i in range(wanted)})


def telling(lines: Sequence[dict[str, Any]], buckets: int) -> set[int]:
    """The lines to keep: of each part of the run the extremes of KEYS, and the first of them that is not finite; every
    evaluation; and where skipping begins or ends, or the loss scale grows."""
    chosen: set[int] = set()
    size = max(1, -(-len(lines) // buckets))
    for start in range(0, len(lines), size):
        part = range(start, min(start + size, len(lines)))
        for key in KEYS:
            known = [(v, i) for i in part if (v := number(lines[i].get(key))) is not None]
            finite = [(v, i) for v, i in known if v - v == 0]
            chosen |= {min(finite)[1], max(finite)[1]} if finite else set()
            chosen |= {i for _, i in [(v, i) for v, i in known if v - v != 0][:1]}
    before: dict[str, Any] = {}
    for i, line in enumerate(lines):
        if "train/loss" not in line:
            chosen.add(i)
            continue
        changed = line.get("update/skipped") != before.get("update/skipped")
        grown = line.get("amp/scale") != before.get("amp/scale") and not line.get("update/skipped")
        if before and (changed or grown):
            chosen |= {i - 1, i}
        before = line
    return chosen
