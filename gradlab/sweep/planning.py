"""The jobs of a sweep, composed and checked before any of them runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig

from gradlab import cli, verdict
from gradlab.config import to_config
from gradlab.errors import exit_code, explain
from gradlab.remedy import DoesNotApply, treated
from gradlab.sweep import composing, unfinished
from gradlab.sweep.grouping import Planned


def plan(
    launcher: Any, overrides: list[str], number: int, codes: dict[int, int], folders: dict[int, Path]
) -> Planned | None:
    """A job that is to run; None if it has run before, or cannot, with its exit code in `codes`."""
    composed = launcher.hydra_context.config_loader.compose(launcher.config, overrides)
    folder, task = composed.settle(number), composed.task
    folders[number] = folder
    if cli.goes_on() and (code := unfinished.finished(folder, overrides)) is not None:
        codes[number] = code
        return None
    if folder.is_dir():
        unfinished.clear(folder)
    try:
        config, plain = composed.config()
        cli.check(config)
        treated_cfg, remedy = treated(task, overrides)
        if remedy:
            config, plain = to_config(treated_cfg), composing.plain(treated_cfg)
    except Exception as error:
        composed.write(folder)
        codes[number] = refused(folder, overrides, error)
        return None
    group = HydraConfig.get().runtime.choices.get("experiment") or "run"
    return Planned(number, overrides, folder, config, plain, group, remedy)


def refused(folder: Path, overrides: list[str], error: Exception) -> int:
    """Leave word of a job that cannot run, as a job alone does; returns its exit code."""
    message = explain(error, folder)
    if message is None:
        raise error
    record = error.record() if isinstance(error, DoesNotApply) else None
    code = 0 if record else exit_code(error)
    print(f"gradlab: {message}", file=sys.stderr, flush=True)
    verdict.write_error(folder, message, code, record, unfinished.identity(overrides))
    return code
