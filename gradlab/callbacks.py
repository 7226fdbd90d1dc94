"""What Hydra calls at the end of a sweep."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from gradlab import cli


class SweepEnd(Callback):
    """Writes results.csv and prints it, on rank 0; the sweep's exit code is that of its worst job."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        cli.SWEEPS.append(Path(config.hydra.sweep.dir))

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        from gradlab import comparison
        from gradlab.distributed import world

        if not world().main:
            return
        folder = Path(config.hydra.sweep.dir)
        rows = sweep_ended(folder)
        if not rows:
            return
        with (folder / "results.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        cli.RESULTS.extend(row["exit_code"] for row in rows)
        print(f"\n{'job':>4}  {'verdict':<15} {'eval loss':>10}  overrides")
        for row in rows:
            loss = row["eval/loss"]
            shown = f"{loss:.4g}" if isinstance(loss, float) else str(loss or "-")
            print(f"{row['job']:>4}  {row['verdict'] or 'error':<15} {shown:>10}  {row['overrides']}")
        if any("remedy=" in row["overrides"] for row in rows):
            comparison.report(folder, [row["job"] for row in rows])
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
