"""What `gradlab.watch` adds to an update of a loop written by hand.

    python experiments/cost/watch.py

Prints medians and quartiles of ratios (see `turns`), for people and as one JSON line a ratio. Four minutes, on one
thread.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator

from turns import TRANSFORMER, Batch, Case, Contender, adamw, bare, mean_loss, measure

# turns is the first to import torch: it chooses one thread.
# isort: split
from torch import nn

import gradlab

MAX_NORM = 1.0
TARGET = 1.05
CASE = Case(TRANSFORMER, 50, 55.0)
"""A turn is a period, after which what is recorded repeats itself."""
TINY = Case([*TRANSFORMER, "data.batch_size=1", "data.length=8"], 50, 30.0)
"""Hardly any arithmetic: what is fixed per call shows."""


def watched(model: nn.Module, batches: Iterator[Batch], max_norm: float | None = None) -> None:
    """`turns.bare` in a watch."""
    optimizer = adamw(model)
    with gradlab.watch(model, optimizer, folder="watched", quiet=True):
        for inputs, targets in batches:
            optimizer.zero_grad(set_to_none=True)
            mean_loss(model, inputs, targets).backward()
            if max_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()


def bare_clip(model: nn.Module, batches: Iterator[Batch]) -> None:
    bare(model, batches, MAX_NORM)


def watched_clip(model: nn.Module, batches: Iterator[Batch]) -> None:
    watched(model, batches, MAX_NORM)


LOOPS = {
    "transformer": (CASE, bare, watched),
    "transformer clipped": (CASE, bare_clip, watched_clip),
    "tiny": (TINY, bare, watched),
}


def main() -> None:
    lines = []
    for name, (case, alone, seen) in LOOPS.items():
        teams = measure(case, {"bare": Contender(alone, "bare"), "watched": Contender(seen, "bare")})
        pairs = [pair for team in teams for pair in zip(team["watched"], team["bare"], strict=True)]
        low, ratio, high = statistics.quantiles([a.cpu / b.cpu for a, b in pairs], n=4, method="inclusive")
        clock = statistics.median(a.clock / b.clock for a, b in pairs)
        ms = 1e3 * statistics.median(b.cpu for _, b in pairs)
        print(f"{name}: {len(pairs)} rounds of {case.turn} updates; bare: {ms:.2f} ms of CPU an update")
        print(
            f"  watched / bare: {ratio:.3f}, quartiles {low:.3f} to {high:.3f} ({clock:.3f} by the clock)", flush=True
        )
        rounded = {key: round(value, 4) for key, value in (("ratio", ratio), ("low", low), ("high", high))}
        lines.append({"name": f"watched / bare, {name}", **rounded, "target": TARGET})
    for line in lines:
        print(json.dumps(line))


if __name__ == "__main__":
    main()
