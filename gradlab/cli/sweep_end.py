"""What Hydra calls at the beginning and at the end of a sweep."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gradlab.base import errors
from gradlab.base.json_lines import write_whole
from gradlab.base.option import Invalid
from gradlab.base.visible import one_line
from gradlab.cli.session import current

SHOWN = 100
"""Jobs of a sweep that are printed."""


class SweepEnd(Callback):
    """Writes results.csv and prints it, on rank 0; the sweep's exit code is that of its worst job."""

    def __init__(self, goes_on: bool = False) -> None:
        """goes_on: read by every job, in whatever process it runs."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        from gradlab.base.distributed import world
        from gradlab.runs.sweep_record import COPY
        from gradlab.runs.trust import mark, sweep_named
        from gradlab.sweep.grid import jobs
        from gradlab.sweep.launchers import processes
        from gradlab.sweep.progress import SweepWatch

        processes.prepare(config)
        if world().main:
            with suppress(OSError):  # the sweeper will report it
                folder = Path(config.hydra.sweep.dir)
                folder.mkdir(parents=True, exist_ok=True)
                write_whole(folder / COPY, OmegaConf.to_yaml(config))
            mark(*sweep_named(OmegaConf.to_container(config.hydra, resolve=False)))  # type: ignore[arg-type]
        launcher = config.hydra.runtime.choices["hydra/launcher"]
        folder, session = Path(config.hydra.sweep.dir), current()
        session.sweeps[folder] = None
        with suppress(HydraException, OmegaConfBaseException, Invalid):  # the sweeper will report it
            session.sweeps[folder] = jobs.planned(config)
        planned = session.sweeps[folder]
        if world().main and launcher != "vectorized":  # which says more
            session.watch = SweepWatch(folder.absolute(), None if planned is None else len(planned))
        if planned is None and world().main:
            folder.mkdir(parents=True, exist_ok=True)  # sweepers of others do not write what resuming needs
            OmegaConf.save(config, folder / "multirun.yaml")

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        from gradlab.base.distributed import world

        if not world().main:
            return
        current().stop_watching()
        try:
            conclude(Path(config.hydra.sweep.dir))
        except Exception as error:  # Hydra would only warn, and exit with 0
            current().exit_codes.append(1)
            print(f"gradlab: {errors.explain(error) or repr(error)}", file=sys.stderr)


def conclude(folder: Path) -> None:
    """Write and print the results of a sweep's jobs, however it ended."""
    from gradlab.loggers.wandb import sweep as wandb_sweep
    from gradlab.report.pages import run_page, sweep_page
    from gradlab.sweep import results, resume

    session = current()
    rows, planned = results.read(folder), session.sweeps.get(folder) or []
    session.exit_codes.extend(row["exit_code"] for row in rows)
    run_page.complete(folder / row["job"] for row in rows)
    if len(rows) < len(planned):  # jobs in other processes that left nothing
        session.exit_codes.append(1)
    if any((folder / name).is_file() for name in ("edges.json", "cells.json", "fix.json")):
        results.write(rows, folder / "results.csv")
        print_paths(sweep_page.written(folder, rows), folder)  # a search has reported its runs, all together
        wandb_sweep.write(folder, rows)
        return
    minimised = results.minimised(folder, rows) if rows and session.sweeps.get(folder, []) is None else []
    page = show(folder, rows, len(planned)) if rows else None
    print(*minimised, sep="\n" * bool(minimised), end="\n" * bool(minimised))
    wandb_sweep.write(folder, rows)
    if (left := resume.remaining(folder, planned)) is not None:
        print(left)
    print_paths(page, folder)


def print_paths(page: Path | None, folder: Path) -> None:
    """Print the paths of the report and of the sweep's folder."""
    print(*([f"report: {page}"] if page else []), f"folder: {folder}", sep="\n", flush=True)


def show(folder: Path, rows: list[dict[str, Any]], planned: int) -> Path | None:
    """Write results.csv, and print it; remedies are compared, and what has axes is drawn. Returns the page."""
    from gradlab.remedies import comparison_table
    from gradlab.report.pages import sweep_page
    from gradlab.sweep import results
    from gradlab.sweep.maps import sweep_map

    results.write(rows, folder / "results.csv")
    print(f"\n{'job':>4}  {'verdict':<15} {'eval loss':>10}  overrides")
    for row in rows[:SHOWN]:
        loss = row["eval/loss"]
        shown = f"{loss:.4g}" if isinstance(loss, float) else str(loss or "-")
        none = "error" if (folder / row["job"] / "diagnosis.json").is_file() else "unfinished"
        print(f"{row['job']:>4}  {row['verdict'] or none:<15} {shown:>10}  {one_line(row['overrides'])}")
    if len(rows) > SHOWN:
        print(f"({len(rows) - SHOWN} more: {folder / 'results.csv'})")
    remedies = any("remedy=" in row["overrides"] for row in rows)
    compared = comparison_table.report(folder, [row["job"] for row in rows]) if remedies else []
    drawn = sweep_map.sweep_ended(folder, rows)
    return sweep_page.written(folder, rows, drawn=drawn, compared=compared, planned=planned)
