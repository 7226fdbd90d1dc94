"""Jobs of a sweep, composed and checked before any of them runs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from gradlab.base.command import identity
from gradlab.base.errors import exit_code, explain
from gradlab.config.compose import check
from gradlab.config.remedy import DoesNotApply, treated
from gradlab.config.schema import Config
from gradlab.runs import diagnosis_file
from gradlab.sweep import resume
from gradlab.sweep.grid.config_loader import SweepConfigLoader
from gradlab.sweep.grid.job_config import plain_value


@dataclass
class PlannedJob:
    """A job that is to run: its number in the sweep, and its configuration in full."""

    number: int
    overrides: list[str]
    folder: Path
    config: Config
    plain: dict[str, Any]
    group: str
    """The experiment's name, or `run`."""
    remedy: dict[str, Any] | None = None
    """What remedies have changed in the configuration."""


def plan(
    loader: SweepConfigLoader,
    master: DictConfig,
    overrides: list[str],
    number: int,
    codes: dict[int, int],
    folders: dict[int, Path],
) -> PlannedJob | None:
    """A job that is to run; None if it ran before or cannot run: its exit code is then put into `codes`.

    master: the sweep's own configuration. folders: the job's folder is put here.
    """
    composed = loader.compose(master, overrides)
    folder, task = composed.activate(number), composed.task
    folders[number] = folder
    if resume.resuming() and (code := resume.finished(folder, overrides)) is not None:
        codes[number] = code
        return None
    if folder.is_dir():
        resume.clear(folder)
    try:
        config, plain = composed.config()
        check(config)
        made = treated(task, overrides, config)
        if made.remedy:
            config, plain = made.config, plain_value(made.composed)
    except Exception as error:
        composed.write(folder)
        codes[number] = refuse(folder, overrides, error)
        return None
    group = HydraConfig.get().runtime.choices.get("experiment") or "run"
    return PlannedJob(number, overrides, folder, config, plain, group, made.remedy)


def refuse(folder: Path, overrides: list[str], error: Exception) -> int:
    """Report a job that cannot run, and write its diagnosis.json as a single run does; returns its exit code."""
    message = explain(error, folder)
    if message is None:
        raise error
    record = error.record() if isinstance(error, DoesNotApply) else None
    code = 0 if record else exit_code(error)
    print(f"gradlab: {message}", file=sys.stderr, flush=True)
    diagnosis_file.write_error(folder, message, code, record, identity(overrides))
    return code
