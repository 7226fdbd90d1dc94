"""What Hydra calls at the end of a sweep."""

from __future__ import annotations

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
        from gradlab import compare
        from gradlab.distributed import world
        from gradlab.sweep import maps, results

        if not world().main:
            return
        folder = Path(config.hydra.sweep.dir)
        rows = results.read(folder)
        if not rows:
            return
        results.write(rows, folder / "results.csv")
        cli.RESULTS.extend(row["exit_code"] for row in rows)
        print(f"\n{'job':>4}  {'verdict':<15} {'eval loss':>10}  overrides")
        for row in rows:
            loss = row["eval/loss"]
            shown = f"{loss:.4g}" if isinstance(loss, float) else str(loss or "-")
            print(f"{row['job']:>4}  {row['verdict'] or 'error':<15} {shown:>10}  {row['overrides']}")
        if any("remedy=" in row["overrides"] for row in rows):
            compare.report(folder, [row["job"] for row in rows])
        maps.sweep_ended(folder, rows)
        print(f"all of it: {folder}", flush=True)
