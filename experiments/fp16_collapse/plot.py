"""Draw the figures of this experiment from the folders of its runs, and print the table of its README.

python plot.py SWEEP RUN    SWEEP: folder of the multirun over optimizer.lr and seed; RUN: folder of one collapse
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import yaml

from gradlab.base.json_lines import number, read_lines

HERE = Path(__file__).parent
UPDATES = 205
"""Updates of an epoch."""
STYLES: dict[str, dict[str, Any]] = {
    "healthy": {"marker": "o", "color": "C0", "linestyle": "none", "label": "completes"},
    "scale_collapse": {"marker": "x", "color": "C3", "linestyle": "none", "label": "scale collapses"},
    "diverged": {"marker": "s", "color": "C1", "linestyle": "none", "label": "completes, unhealthy"},
}


def jobs(sweep: Path) -> list[dict[str, Any]]:
    """Rate, seed, verdict, where the scale began to fall and the evaluations of every job, in the order of rates."""
    rows = []
    for file in sorted(sweep.rglob("diagnosis.json")):
        result = json.loads(file.read_text())
        overrides = yaml.safe_load((file.parent / ".hydra" / "overrides.yaml").read_text())
        values = dict(o.lstrip("+").split("=", 1) for o in overrides)
        outcome = result["outcome"]
        rows.append(
            {
                "lr": float(values["optimizer.lr"]),
                "seed": int(values["seed"]),
                "verdict": result["verdict"],
                "began": result["evidence"].get("scale_fell_from"),
                "attempts": outcome["attempts"],
                "epochs": outcome["epochs_completed"],
                "eval": [number(e["eval/loss"]) for e in outcome["eval"] if e["epoch"]],
                "skipped": result["evidence"]["skipped"],
                "overflow": (result["first_overflow"] or {}).get("module"),
            }
        )
    return sorted(rows, key=lambda r: (r["lr"], r["seed"]))


def table(rows: list[dict[str, Any]]) -> None:
    """The README's table, a line a rate."""
    by_rate = defaultdict(list)
    for row in rows:
        by_rate[row["lr"]].append(row)
    print(
        "| learning rate | verdict (seeds) | scale fell from update | skipped | eval loss after each epoch, by seed |"
    )
    print("|---|---|---|---|---|")
    for lr, group in by_rate.items():
        verdicts = Counter(r["verdict"] for r in group)
        outcome = ", ".join(f"{n} of {len(group)} {verdict}" for verdict, n in verdicts.items())
        began = ", ".join(str(r["began"] or "-") for r in group)
        skipped = ", ".join(str(r["skipped"]) for r in group)
        losses = "; ".join(" ".join(f"{x:.2f}" for x in r["eval"]) or "-" for r in group)
        print(f"| {lr:g} | {outcome} | {began} | {skipped} | {losses} |")


def curve(rows: list[dict[str, Any]]) -> None:
    """Outcome against learning rate: best evaluation, and the update at which the scale began to fall."""
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(7, 5.4), sharex=True, layout="constrained")
    for row in rows:
        style = STYLES.get(row["verdict"], STYLES["diverged"]) | {"label": None}
        if any(map(isfinite, row["eval"])):
            top.plot(row["lr"], min(filter(isfinite, row["eval"])), **style)
        bottom.plot(row["lr"], row["began"] or row["attempts"], **style)
    for style in STYLES.values():
        top.plot([], [], **style)
    top.legend()
    top.set(
        xscale="log", ylabel="best eval loss", title="fine-tuning in fp16: outcome against learning rate, three seeds"
    )
    for epoch in (1, 2):
        bottom.axhline(UPDATES * epoch, color="0.8", zorder=0)
    bottom.set(xlabel="learning rate", ylabel="the scale falls from update")
    figure.savefig(HERE / "curve.png", dpi=130)


def collapse(run: Path) -> None:
    """One run: loss, gradient norm and loss scale over its updates."""
    lines = [line for line in read_lines(run / "metrics.jsonl") if "train/loss" in line]
    x = [line["attempt"] for line in lines]
    figure, axes = plt.subplots(3, 1, figsize=(8, 5.4), sharex=True, layout="constrained")
    for axis, name, log in zip(axes, ("train/loss", "grad/norm", "amp/scale"), (False, True, True), strict=True):
        axis.plot(x, [line[name] for line in lines], color="C0", linewidth=1.2)
        axis.set_ylabel(name)
        if log:
            axis.set_yscale("log", base=2 if name == "amp/scale" else 10)
        for line in lines:
            if line["update/skipped"]:
                axis.axvline(line["attempt"], color="C3", alpha=0.15, linewidth=1)
        for before, after in pairwise(lines):
            if after["epoch"] != before["epoch"]:
                axis.axvline(after["attempt"] - 0.5, color="0.6", linestyle=":")
    axes[0].set_title("fp16_collapse: skipped updates in red, epochs dotted")
    axes[-1].set_xlabel("update")
    figure.savefig(HERE / "collapse.png", dpi=130)


if __name__ == "__main__":
    found = jobs(Path(sys.argv[1]))
    table(found)
    curve(found)
    collapse(Path(sys.argv[2]))
