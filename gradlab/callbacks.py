"""What Hydra calls at the end of a sweep."""

from __future__ import annotations

import csv
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from gradlab import cli, errors

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
        cli.SWEEPS.append(folder)
        with suppress(HydraException, OmegaConfBaseException):  # the sweeper will say it
            PLANNED[folder] = grid.planned(config)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        from gradlab.distributed import world

        if not world().main:
            return
        try:
            conclude(Path(config.hydra.sweep.dir))
        except Exception as error:  # Hydra would make a warning of it, and 0 of the exit code
            cli.RESULTS.append(1)
            print(f"gradlab: {errors.explain(error) or repr(error)}", file=sys.stderr)


def conclude(folder: Path) -> None:
    """Write and print what the jobs of a sweep have come to, however it ended."""
    from gradlab.sweep import unfinished
    from gradlab.verdict import command

    rows, planned = sweep_ended(folder), PLANNED.get(folder) or []
    cli.RESULTS.extend(row["exit_code"] for row in rows)
    if len(rows) < len(planned):  # jobs in other processes that left nothing
        cli.RESULTS.append(1)
    if rows:
        show(folder, rows)
    if (done := unfinished.count(folder, planned)) < len(planned):
        print(f"{done} of {len(planned)} jobs have finished; the others run with: {command([f'resume={folder}'])}")
    print(f"all of it: {folder}", flush=True)


def show(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Write results.csv, and print it; remedies are compared."""
    from gradlab import compare

    with (folder / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    print(f"\n{'job':>4}  {'verdict':<15} {'eval loss':>10}  overrides")
    for row in rows:
        loss = row["eval/loss"]
        shown = f"{loss:.4g}" if isinstance(loss, float) else str(loss or "-")
        none = "error" if (folder / row["job"] / "diagnosis.json").is_file() else "unfinished"
        print(f"{row['job']:>4}  {row['verdict'] or none:<15} {shown:>10}  {row['overrides']}")
    if any("remedy=" in row["overrides"] for row in rows):
        compare.report(folder, [row["job"] for row in rows])


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
