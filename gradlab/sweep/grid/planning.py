"""The jobs of a sweep, composed and checked before any of them runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig

from gradlab.base.command import identity
from gradlab.base.errors import exit_code, explain
from gradlab.config.compose import check
from gradlab.config.remedy import DoesNotApply, treated
from gradlab.runs import ending
from gradlab.sweep import unfinished
from gradlab.sweep.grid import composer
from gradlab.sweep.vectorized.grouping import Planned


def plan(
    launcher: Any, overrides: list[str], number: int, codes: dict[int, int], folders: dict[int, Path]
) -> Planned | None:
    """A job that is to run; None if it has run before, or cannot, with its exit code in `codes`."""
    composed = launcher.hydra_context.config_loader.compose(launcher.config, overrides)
    folder, task = composed.settle(number), composed.task
    folders[number] = folder
    if unfinished.resuming() and (code := unfinished.finished(folder, overrides)) is not None:
        codes[number] = code
        return None
    if folder.is_dir():
        unfinished.clear(folder)
    try:
        config, plain = composed.config()
        check(config)
        made = treated(task, overrides, config)
        if made.remedy:
            config, plain = made.config, composer.plain(made.composed)
    except Exception as error:
        composed.write(folder)
        codes[number] = refused(folder, overrides, error)
        return None
    group = HydraConfig.get().runtime.choices.get("experiment") or "run"
    return Planned(number, overrides, folder, config, plain, group, made.remedy)


def refused(folder: Path, overrides: list[str], error: Exception) -> int:
    """Leave word of a job that cannot run, as a job alone does; returns its exit code."""
    message = explain(error, folder)
    if message is None:
        raise error
    record = error.record() if isinstance(error, DoesNotApply) else None
    code = 0 if record else exit_code(error)
    print(f"gradlab: {message}", file=sys.stderr, flush=True)
    ending.write_error(folder, message, code, record, identity(overrides))
    return code
