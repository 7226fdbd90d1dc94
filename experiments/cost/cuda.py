"""On a CUDA device: an update of gradlab and a watched one beside a bare PyTorch loop.

    python experiments/cost/cuda.py

Prints medians and quartiles of ratios by the clock, which waits for the device at the end of each turn (see `turns`),
for people and as one JSON line a ratio. Two minutes.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial

from turns import TRANSFORMER, Batch, Case, Contender, Turn, adamw, mean_loss, measure

# turns is the first to import torch: it chooses one thread.
# isort: split
import torch
from torch import nn

import gradlab

MAX_NORM = 1.0
TARGET = 1.02
LONG = "data.samples=65536"
CLIP = ["clip=norm", f"clip.max_norm={MAX_NORM}"]
LARGE = ["model.layers=12", "model.width=768", "model.heads=12", "data.length=512"]
CASES = {
    "4 blocks of width 64, batch 16 x 64, fp32": Case([*TRANSFORMER, LONG], 25, 24.0, teams=1, device="cuda", near=0.1),
    "12 blocks of width 768, batch 16 x 512, bf16": Case(
        [*TRANSFORMER, *LARGE, LONG, "precision=bf16"], 10, 40.0, teams=1, device="cuda", near=0.1
    ),
}


def loop(model: nn.Module, batches: Iterator[Batch], half: bool = False, watched: bool = False) -> None:
    """The loop that everyone writes by hand, clipped. half: in bf16."""
    optimizer = adamw(model)
    with gradlab.watch(model, optimizer, folder="watched", quiet=True) if watched else nullcontext():
        for inputs, targets in batches:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.bfloat16, enabled=half):
                loss = mean_loss(model, inputs, targets)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
            optimizer.step()


def report(label: str, turns: dict[str, list[Turn]]) -> list[dict[str, object]]:
    ms = 1e3 * statistics.median(t.clock for t in turns["bare"])
    print(f"{label}: {len(turns['bare'])} rounds; bare: {ms:.2f} ms an update; ratios by the clock")
    lines: list[dict[str, object]] = []
    for name in list(turns)[1:]:
        pairs = zip(turns[name], turns["bare"], strict=True)
        low, ratio, high = statistics.quantiles([a.clock / b.clock for a, b in pairs], n=4, method="inclusive")
        print(f"  {name} / bare: {ratio:.3f}, quartiles {low:.3f} to {high:.3f}", flush=True)
        rounded = {key: round(value, 4) for key, value in (("ratio", ratio), ("low", low), ("high", high))}
        lines.append({"name": f"{name} / bare, {label}", **rounded, "target": TARGET})
    return lines


def main() -> None:
    lines = []
    for label, case in CASES.items():
        by_hand = partial(loop, half="bf16" in label)
        contenders = {"bare": Contender(by_hand, "bare")}
        for monitor in ("none", "summary", "full"):
            contenders[monitor] = Contender([*CLIP, f"monitor={monitor}"], "bare", exact=False)
        contenders["watched"] = Contender(partial(by_hand, watched=True), "bare", exact=False)
        teams = measure(case, contenders)
        lines += report(label, {name: [turn for team in teams for turn in team[name]] for name in contenders})
    for line in lines:
        print(json.dumps(line))


if __name__ == "__main__":
    main()
