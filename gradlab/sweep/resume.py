"""Resuming an interrupted sweep: which jobs have finished, and the command that started it.

A job has finished when its diagnosis.json, which is written whole or not at all, holds a verdict under the overrides
that it is to run under. All others run from the beginning.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from gradlab.base.command import INTERRUPTED, WRONG, command, identity, key, quoted
from gradlab.base.option import Invalid
from gradlab.config.compose import SILENT
from gradlab.runs.record import RunRecord
from gradlab.runs.sweep_record import SweepRecord

if TYPE_CHECKING:
    from gradlab.base.distributed import World

WRITTEN = (
    *("checkpoint.pt", "crash.pt", "diagnosis.json", "layers.jsonl", "metrics.jsonl", "report.html", "figures"),
    *("environment.json", "replay.json", "wandb", "tensorboard"),
)
"""What a run leaves, beside what Hydra writes: it must not be mistaken for files of the next run in the folder."""


def resuming() -> bool:
    """Whether the sweep under way was interrupted before."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    return bool(OmegaConf.select(HydraConfig.instance().cfg, "hydra.callbacks.gradlab.goes_on"))  # type: ignore


def finished(folder: Path, overrides: list[str]) -> int | None:
    """Exit code of the job that finished in this folder under these overrides; None: it has to run.

    An interrupted job has not finished; nor has one that ended in an error, since its cause may have been fixed.
    """
    run = RunRecord(folder)
    code = run.diagnosis.get("exit_code")
    if type(code) is not int or code == INTERRUPTED or not (run.verdict is not None or run.refused):
        return None
    return code if run.diagnosis.get("overrides") == identity(overrides) else None


def finished_or_clear(folder: Path, overrides: list[str], world: World) -> int | None:
    """Exit code of a job that has finished; else its folder is cleared, and None."""
    code: int | None = world.broadcast(finished(folder, overrides))
    if code is None and world.main:
        clear(folder)
    return code


def clear(folder: Path) -> None:
    """Remove what an unfinished job has left."""
    for name in WRITTEN:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def refused_before(folder: Path, overrides: list[str]) -> bool:
    """Whether the job in this folder was refused for its overrides: it would fail again."""
    found = RunRecord(folder).diagnosis
    same = found.get("overrides") == identity(overrides)
    return same and found.get("verdict") is None and found.get("exit_code") == WRONG


def count_finished(folder: Path, planned: list[list[str]]) -> tuple[int, int]:
    """How many of a sweep's jobs have finished, and how many of the others were refused for their overrides."""
    jobs = {tuple(identity(job)) for job in planned}
    done, refused = set(), set()
    for run in SweepRecord(folder).jobs:
        overrides = identity(run.typed)
        if tuple(overrides) not in jobs:
            continue
        if finished(run.path, overrides) is not None:
            done.add(tuple(overrides))
        elif refused_before(run.path, overrides):
            refused.add(tuple(overrides))
    return len(done), len(refused - done)


def remaining(folder: Path, planned: list[list[str]]) -> str | None:
    """A message about the jobs that have not finished, and how to run those that can run; None: all have finished."""
    (done, refused), jobs = count_finished(folder, planned), len({tuple(identity(job)) for job in planned})
    if done == jobs:
        return None
    parts = [f"{done} of {jobs} jobs have finished"]
    if refused:
        parts.append(f"{refused} {'job has' if refused == 1 else 'jobs have'} an invalid command and would fail again")
    if done + refused < jobs:
        parts.append(f"the others run with: {command([f'resume={folder}'])}")
    return "; ".join(parts)


def original_command(folder: Path, given: list[str]) -> tuple[list[str], list[str], list[str]]:
    """The flags and overrides of the command that started a sweep, and the overrides that resume it.

    given: overrides given now, which may change where the jobs run, but not the jobs. Raises `Invalid`.
    """
    hydra = SweepRecord(folder).hydra
    try:
        task, others = hydra["overrides"]["task"], hydra["overrides"]["hydra"]
        sources, name = hydra["runtime"]["config_sources"], hydra["job"]["config_name"]
    except (KeyError, TypeError):
        raise Invalid("resume", folder, "its multirun.yaml cannot be read; start the sweep again") from None
    changed = [o for o in given if not o.startswith(("hydra/", "hydra."))]
    if changed:
        raise Invalid("resume", folder, f"a sweep resumes with its own overrides; {' '.join(changed)} would change it")
    mine = [key(o) for o in given]
    others = [o for o in others if o not in SILENT]  # every rank writes multirun.yaml, and rank 0 not always last
    replaced = {"hydra.mode", "hydra.sweep.dir", "hydra.callbacks.gradlab.goes_on", *mine}
    groups = tuple(f"{name.replace('/', '.')}." for name in mine if "/" in name)  # its fields go with an option
    kept = [o for o in others if key(o) not in replaced and not key(o).startswith(groups)]
    flags = ["--multirun", f"--config-name={name}"]
    flags += [f"--config-dir={source['path']}" for source in sources if source["provider"] == "command-line"]
    return flags, [*task, *kept], [f"hydra.sweep.dir={quoted(folder)}", "hydra.callbacks.gradlab.goes_on=true"]
