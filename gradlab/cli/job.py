"""One job: compose what is to run from Hydra's configuration, run it, and return its exit code."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from gradlab.base import distributed, errors, restarts
from gradlab.base.command import INTERRUPTED, identity
from gradlab.base.lock import turn
from gradlab.base.option import Invalid
from gradlab.base.signals import handled
from gradlab.cli import session
from gradlab.config.compose import check
from gradlab.config.ranks import check_alike
from gradlab.config.remedy import DoesNotApply, Treated, treated
from gradlab.config.schema import choices, to_config

if TYPE_CHECKING:
    from gradlab.base.distributed import World

LOST_CONNECTION = re.compile("gloo|nccl|connection (closed|reset)|broken pipe", re.IGNORECASE)
"""In what PyTorch raises where another rank is gone."""
FRESH = {".hydra", "gradlab.log"}
"""What Hydra writes into a folder before its job runs."""


def task(cfg: DictConfig) -> Any:
    """Hydra's task function; returns the objective to its sweepers."""
    from gradlab.train.interrupt import ASKED

    of_command, folder = session.current(), Path(HydraConfig.get().runtime.output_dir)
    codes, multirun = of_command.exit_codes, HydraConfig.get().mode is RunMode.MULTIRUN
    of_command.between_jobs = False
    if ASKED.is_set():  # before this job began
        remove_fresh(folder)
        raise KeyboardInterrupt
    if INTERRUPTED in codes:  # Ctrl-C ends a sweep, not one of its jobs
        remove_fresh(folder)
        return math.inf
    code = run_job(cfg)
    codes.append(code)
    of_command.folders.append(folder)
    if ASKED.is_set() and code != INTERRUPTED and multirun:
        raise KeyboardInterrupt  # with its last update: this job is whole, and the sweep ends
    of_command.between_jobs = multirun
    return returned(folder, cfg.objective, distributed.world()) if multirun else code


def returned(folder: Path, wanted: Any, world: World) -> Any:
    """The objective of a job, on every rank."""
    from gradlab.runs.objective import objective

    plain = OmegaConf.to_container(wanted) if OmegaConf.is_config(wanted) else wanted
    try:
        found: Any = objective(folder, plain) if world.main else None
    except Invalid as error:
        found = error
    if isinstance(found := world.broadcast(found), Invalid):
        raise found
    return found


def remove_fresh(folder: Path) -> None:
    """Remove the folder of a job that did not run, now or before."""
    if folder.is_dir() and {p.name for p in folder.iterdir()} <= FRESH:
        shutil.rmtree(folder, ignore_errors=True)


def run_job(cfg: DictConfig) -> int:
    """One job, from its composed configuration; never raises an Exception, so that a sweep continues."""
    from gradlab.sweep.launchers import processes

    world = distributed.world()
    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    overrides: list[Any] = OmegaConf.to_container(hydra.overrides.task, resolve=False)  # type: ignore[assignment]
    processes.enter()
    if world.main and (start := restarts.start()) is not None:
        start.remember(Path(hydra.sweep.dir) if hydra.mode is RunMode.MULTIRUN else folder)
    try:
        with turn(folder) if world.main else nullcontext():
            return run(compose(cfg, overrides), folder, overrides, world)
    except (Exception, SystemExit) as error:  # a user's module may call sys.exit
        # PyTorch's raises wherever the program is once a worker is gone, often after its closed pipe has ended the run
        with handled({signal.SIGCHLD: signal.SIG_DFL}):
            return failed(error, folder, world, overrides if hydra.mode == RunMode.MULTIRUN else None)


def compose(cfg: DictConfig, overrides: list[str]) -> Treated:
    """The typed configuration, checked, with its remedies applied."""
    config = to_config(cfg)
    check(config)
    return treated(cfg, overrides, config)


def run(made: Treated, folder: Path, overrides: list[str], world: World) -> int:
    """Run a checked configuration; PyTorch is imported only now."""
    from gradlab.sweep import resume
    from gradlab.sweep.launchers import processes

    plain: dict[str, Any] = OmegaConf.to_container(made.composed, resolve=True)  # type: ignore[assignment]
    check_alike(plain, choices(made.config), world)
    if resume.resuming() and (code := resume.finished_or_clear(folder, overrides, world)) is not None:
        save_treated(made, folder, world)
        return code
    from gradlab.cli.resume import check_unchanged
    from gradlab.report.views import VIEWS
    from gradlab.runs.job import Job, builds
    from gradlab.train import build, checkpoint, snapshot

    config = made.config
    if (before := session.current().resumed) is not None:
        with checkpoint.taken("resume", folder / "checkpoint.pt"):
            check_unchanged(folder, before.config or snapshot.load(folder)["config"], plain, before.given)
        if before.config is not None and world.main:
            print(f"{folder}: no checkpoint.pt, since the run ended before its first: it begins anew", file=sys.stderr)
    config.trainer.progress = processes.progress(config.trainer.progress)
    group = HydraConfig.get().runtime.choices.get("experiment") or "run"
    with build.threads(config.trainer.threads or processes.threads()):
        try:
            job = Job(config, plain, folder, overrides, group, world, made.remedy, views=VIEWS)
        except Invalid as error:
            if made.remedy and builds(made.untreated, folder, world):  # then the remedy is what does not fit
                raise DoesNotApply(made.remedy["names"], str(error)) from None
            raise
        save_treated(made, folder, world)
        code = job.run()
    if config.fix and HydraConfig.get().mode is RunMode.RUN and world.size == 1:
        session.current().to_fix = folder
    return code


def save_treated(made: Treated, folder: Path, world: World) -> None:
    """Write what runs into .hydra; Hydra has written what was composed."""
    if made.remedy and world.main and (folder / ".hydra").is_dir():
        OmegaConf.save(made.composed, folder / ".hydra" / "config.yaml")


def failed(error: BaseException, folder: Path, world: World, overrides: list[str] | None) -> int:
    """Report why one job (of a sweep, under these overrides) failed, once; the sweep's other jobs are not affected.

    Returns the exit code."""
    from gradlab.runs import diagnosis_file

    message, code = errors.explain(error, folder), errors.exit_code(error)
    if isinstance(error, OSError) and not folder.is_dir():
        message, code = f"{folder}: was removed while the run was at work", 1
    session.current().failures.append(error)
    refused = error if isinstance(error, DoesNotApply) else None
    if overrides is not None and refused:
        code = 0  # an answer, and not a fault of the command
    shown = "".join(traceback.format_exception(error)) if message is None else f"gradlab: {message}\n"
    failed_at, alone = int(time.time()), world.size > 1 and not all_failed(world)
    if (alone or overrides is None) and not other_rank_ended(error):
        tell_torchrun(of_rank(error, message, world.rank), failed_at)
    if alone:
        print(of_rank(error, message, world.rank), end="", file=sys.stderr, flush=True)
        os._exit(code)  # the launcher then ends the others, which would wait for this rank for ever
    if not world.main:
        wait_for(world, "said", [0])  # once a rank has ended, the launcher ends rank 0, which still prints
        return code
    if overrides is not None or not session.current().raises:
        print(shown if world.size == 1 or message else of_rank(error, None, 0), end="", file=sys.stderr, flush=True)
    if world.size > 1:
        wait_for(world, "said", [0])
    if overrides is not None:
        record = refused.record() if refused else None
        diagnosis_file.write_error(folder, message or repr(error), code, record, identity(overrides))
    elif (before := session.current().resumed) is not None:
        before.restore()
    else:
        remove_fresh(folder)
    return code


def of_rank(error: BaseException, message: str | None, rank: int) -> str:
    """What one rank of several says of its end; nothing where another one ended, which the others only notice."""
    if message is not None:
        return f"gradlab: rank {rank}: {message}\n"
    what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    if other_rank_ended(error):
        return f"gradlab: rank {rank}: another rank has ended\n" if rank == 0 else ""
    return "".join([f"gradlab: rank {rank}: {what}\n", *traceback.format_tb(error.__traceback__, limit=-3)])


def tell_torchrun(said: str, failed_at: int) -> None:
    """Have torchrun's summary name why this rank failed, where it would say how to find out."""
    if file := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        with suppress(OSError):
            content = {"message": {"message": said.strip(), "extraInfo": {"timestamp": str(failed_at)}}}
            Path(file).write_text(json.dumps(content), encoding="utf-8")


def other_rank_ended(error: BaseException) -> bool:
    """Whether a rank only notices that another one has ended."""
    return isinstance(error, RuntimeError) and LOST_CONNECTION.search(str(error)) is not None


def all_failed(world: World) -> bool:
    """Whether every rank reports in time that this job failed; not by a collective, in which a healthy rank may be."""
    return wait_for(world, "failed", range(world.size))


def wait_for(world: World, what: str, ranks: Sequence[int], seconds: float = 10.0) -> bool:
    """Report that this rank has come so far in this job; whether all of the given ranks do in time."""
    from torch.distributed import distributed_c10d

    store = distributed_c10d._get_default_store()
    name = f"gradlab/{what}/{len(session.current().exit_codes)}"
    store.set(f"{name}/{world.rank}", "1")
    end = time.monotonic() + seconds
    try:
        while not store.check([f"{name}/{rank}" for rank in ranks]):  # `store.wait` prints lines of its own
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
    except Exception:
        return False
    return True
