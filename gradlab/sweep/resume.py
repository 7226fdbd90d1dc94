"""Going on with a sweep that was interrupted: which jobs have finished, and the command that it began with.

A job has finished when its diagnosis.json, which is written whole or not at all, gives an answer under the overrides
that it is to run under. All others run from their beginning.
"""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradlab.base.command import INTERRUPTED, WRONG, command, identity
from gradlab.base.option import Invalid
from gradlab.config.compose import SILENT

if TYPE_CHECKING:
    from gradlab.base.distributed import World

WRITTEN = (
    *("checkpoint.pt", "crash.pt", "diagnosis.json", "layers.jsonl", "metrics.jsonl", "report.html", "figures"),
    *("environment.json", "replay.json", "wandb", "tensorboard"),
)
"""What a run leaves, beside what Hydra writes: nothing of it may be taken for that of the next run in the folder."""


def resuming() -> bool:
    """Whether the sweep under way was interrupted before."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    return bool(OmegaConf.select(HydraConfig.instance().cfg, "hydra.callbacks.gradlab.goes_on"))  # type: ignore


def finished(folder: Path, overrides: list[str]) -> int | None:
    """Exit code of the job that has given its answer in this folder, under these overrides; None: it has to run.

    An interruption is no answer; nor is an error, since its cause may have been mended.
    """
    try:
        told = json.loads((folder / "diagnosis.json").read_text())
        answered = told["verdict"] is not None or not (told["remedy"] or {"applies": True})["applies"]
        same, code = told["overrides"] == identity(overrides), told["exit_code"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return code if answered and same and type(code) is int and code != INTERRUPTED else None


def finished_or_clear(folder: Path, overrides: list[str], world: World) -> int | None:
    """Exit code of a job that has finished; else its folder is cleared, and None."""
    code = world.broadcast(finished(folder, overrides))
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
    """Whether the job in this folder was refused for what its command says: it would be again."""
    try:
        told = json.loads((folder / "diagnosis.json").read_text())
        return told["verdict"] is None and told["overrides"] == identity(overrides) and told["exit_code"] == WRONG
    except (OSError, ValueError, KeyError, TypeError):
        return False


def count_finished(folder: Path, planned: list[list[str]]) -> tuple[int, int]:
    """How many of a sweep's jobs have finished, and how many of the others are wrong by themselves."""
    import yaml

    jobs = {tuple(identity(job)) for job in planned}
    done, refused = set(), set()
    for path in folder.rglob(".hydra/overrides.yaml"):
        with suppress(OSError, yaml.YAMLError):
            overrides = identity(yaml.safe_load(path.read_text()) or [])
            if tuple(overrides) not in jobs:
                continue
            if finished(path.parent.parent, overrides) is not None:
                done.add(tuple(overrides))
            elif refused_before(path.parent.parent, overrides):
                refused.add(tuple(overrides))
    return len(done), len(refused - done)


def remaining(folder: Path, planned: list[list[str]]) -> str | None:
    """What is said of a sweep's jobs that have not finished, and how to run those that can be; None: all have."""
    (done, refused), jobs = count_finished(folder, planned), len({tuple(identity(job)) for job in planned})
    if done == jobs:
        return None
    parts = [f"{done} of {jobs} jobs have finished"]
    if refused:
        says = "1 is wrong by itself" if refused == 1 else f"{refused} are wrong by themselves"
        parts.append(f"{says} and would be refused again")
    if done + refused < jobs:
        parts.append(f"the others run with: {command([f'resume={folder}'])}")
    return "; ".join(parts)


def original_command(folder: Path, given: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Of the command that began a sweep: flags, overrides, and those that make it go on; given: those given now.

    Where its jobs run may be another place now; what they are may not.
    """
    import yaml

    try:
        hydra: dict[str, Any] = yaml.safe_load((folder / "multirun.yaml").read_text())["hydra"]
        task, others = hydra["overrides"]["task"], hydra["overrides"]["hydra"]
        sources, name = hydra["runtime"]["config_sources"], hydra["job"]["config_name"]
    except (ValueError, KeyError, TypeError, yaml.YAMLError):
        raise Invalid("resume", folder, "its multirun.yaml cannot be read; begin the sweep anew") from None
    changed = [o for o in given if not o.startswith(("hydra/", "hydra."))]
    if changed:
        raise Invalid("resume", folder, f"a sweep goes on as it began; {' '.join(changed)} would make it another")
    mine = [o.partition("=")[0].lstrip("+") for o in given]
    others = [o for o in others if o not in SILENT]  # every rank writes multirun.yaml, and rank 0 not always last
    replaced = {"hydra.mode", "hydra.sweep.dir", "hydra.callbacks.gradlab.goes_on", *mine}
    groups = tuple(f"{name.replace('/', '.')}." for name in mine if "/" in name)  # its fields go with an option
    kept = [
        o for o in others if (key := o.partition("=")[0].lstrip("+")) not in replaced and not key.startswith(groups)
    ]
    flags = ["--multirun", f"--config-name={name}"]
    flags += [f"--config-dir={source['path']}" for source in sources if source["provider"] == "command-line"]
    quoted = str(folder).replace("\\", "\\\\").replace("'", "\\'")
    return flags, [*task, *kept], [f"hydra.sweep.dir='{quoted}'", "hydra.callbacks.gradlab.goes_on=true"]
