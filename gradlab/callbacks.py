"""What Hydra calls at the end of a sweep."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from gradlab import cli

PLANNED: dict[Path, list[list[str]] | None] = {}
"""The overrides of each job of the sweeps that this process began."""


class SweepEnd(Callback):
    """Writes results.csv and prints it, on rank 0; the sweep's exit code is that of its worst job."""

    def __init__(self, goes_on: bool = False) -> None:
        """goes_on: read by every job, in whatever process it runs."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        from gradlab.sweep import elsewhere, grid

        elsewhere.prepare(config)
        folder = Path(config.hydra.sweep.dir)
        PLANNED[folder] = grid.planned(config)
        cli.SWEEPS.append(folder)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        from gradlab.distributed import world

        if world().main:
            conclude(Path(config.hydra.sweep.dir))


def conclude(folder: Path) -> None:
    """Write and print what the jobs of a sweep have come to, however it ended."""
    from gradlab import compare
    from gradlab.sweep import unfinished
    from gradlab.verdict import command

    rows = sweep_ended(folder)
    if not rows:
        return
    with (folder / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    cli.RESULTS.extend(row["exit_code"] for row in rows)
    if any((folder / name).is_file() for name in ("edges.json", "cells.json")):
        print(f"all of it: {folder}", flush=True)  # a search has said what its runs show, all together
        return
    print(f"\n{'job':>4}  {'verdict':<15} {'eval loss':>10}  overrides")
    for row in rows:
        loss = row["eval/loss"]
        shown = f"{loss:.4g}" if isinstance(loss, float) else str(loss or "-")
        none = "error" if (folder / row["job"] / "diagnosis.json").is_file() else "unfinished"
        print(f"{row['job']:>4}  {row['verdict'] or none:<15} {shown:>10}  {row['overrides']}")
    if any("remedy=" in row["overrides"] for row in rows):
        compare.report(folder, [row["job"] for row in rows])
    planned = PLANNED[folder]
    if planned is not None and (done := unfinished.count(folder, planned)) < len(planned):
        print(f"{done} of {len(planned)} jobs have finished; the others run with: {command([f'resume={folder}'])}")
    print(f"all of it: {folder}", flush=True)


def sweep_ended(folder: Path) -> list[dict[str, Any]]:
    """Every job of a sweep with its overrides, verdict and exit code; a job that left nothing failed."""
    import yaml

    rows = []
    jobs = (p.parent.parent for p in folder.rglob(".hydra/overrides.yaml"))
    for path in sorted(jobs, key=lambda p: (not p.name.isdigit(), int(p.name) if p.name.isdigit() else 0, p.name)):
        try:
            result = json.loads((path / "diagnosis.json").read_text())
        except (OSError, json.JSONDecodeError):
            result = {}
        last = ((result.get("outcome") or {}).get("eval") or [{}])[-1]
        overrides = yaml.safe_load((path / ".hydra" / "overrides.yaml").read_text()) or []
        rows.append(
            {
                "job": str(path.relative_to(folder)),
                "overrides": " ".join(overrides),
                "verdict": result.get("verdict") or refused(result),
                "eval/loss": last.get("eval/loss"),
                "exit_code": result.get("exit_code", 1),
            }
        )
    return rows


def refused(result: dict[str, Any]) -> str | None:
    """What stands for the verdict of a job whose remedy does not apply."""
    remedy = result.get("remedy")
    return "does not apply" if remedy and not remedy["applies"] else None
