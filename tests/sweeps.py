"""Folders of sweeps as the runs leave them, with what is in them known."""

import json
import math
from pathlib import Path
from typing import Any

from gradlab.measure.levels import Levels
from gradlab.sweep.search.map_report import MIXED


def job(
    folder: Path,
    overrides: list[str],
    losses: list[float],
    norms: list[float] | None = None,
    verdict: str | None = "healthy",
    status: str = "completed",
    began: int | None = None,
    **more: Any,
) -> Path:
    """A job's folder; losses that are not finite are written as the runs write them."""
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra" / "overrides.yaml").write_text("".join(f"- {o}\n" for o in overrides))
    with (folder / "metrics.jsonl").open("w") as file:
        for i, loss in enumerate(losses):
            norm = norms[i] if norms else 1.0
            line = {"update": i + 1, "attempt": i + 1, "train/loss": loss, "grad/norm": norm, "clip/fraction": 0.25}
            kept = {k: v if math.isfinite(v) else "NaN" if v != v else "Infinity" for k, v in line.items()}
            file.write(json.dumps(kept | {"update/skipped": False}, separators=(",", ":")) + "\n")
    findings = [{"code": verdict, "began": began}]
    outcome = {"status": status, "eval": [{"epoch": 1, "eval/loss": losses[-1] if losses else 1.0}], "seconds": 1.0}
    told = {"verdict": verdict, "sentence": "seen", "findings": findings, "planned": len(losses), "exit_code": 0}
    learns = bool(losses and losses[0] - Levels(losses).best >= 0.05 * losses[0])
    content = told | {"outcome": outcome, "learns": learns} | more
    (folder / "diagnosis.json").write_text(json.dumps(content))
    return folder


def sweep(
    folder: Path,
    lrs: list[float],
    ys: list[Any],
    edge: Any,
    seeds: int = 1,
    y: str = "clip.max_norm",
    updates: int = 30,
    x: str = "optimizer.lr",
) -> Path:
    """Stable and learning where lr <= edge(y, seed), exploding beyond; the loss falls the further the larger lr is."""
    count = 0
    for lr in lrs:
        for value in ys:
            for seed in range(seeds):
                good = lr <= edge(value, seed)
                losses = [2.0 - min(lr, 1.0) * i / updates for i in range(updates)]
                typed = ["model=lstm", f"{x}={lr}", f"{y}={value}", *([f"seed={seed}"] if seeds > 1 else [])]
                ill = {} if good else {"verdict": "exploding", "status": "failed", "began": 11}
                job(folder / str(count), typed, losses if good else [*losses[:20], math.nan], **ill)
                count += 1
    return folder


def dense(one: dict[str, Any], resolution: int) -> list[list[str | None]]:
    """The class of every point of the full grid, [j][i], from a map of cells.json: tried, or that of its cell."""
    grid: list[list[str | None]] = [[None] * (resolution + 1) for _ in range(resolution + 1)]
    for i, j, size, name in one["cells"]:
        for row in grid[j : j + size + 1] if name not in (None, MIXED) else ():  # of a mixed one all points were tried
            row[i : i + size + 1] = [name] * (size + 1)
    for i, j, seen, _ in one["points"]:
        grid[j][i] = seen
    return grid
