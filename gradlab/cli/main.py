"""The command: compose a configuration, run it, diagnose it, and end with what was expected or not."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import sys
import traceback
from contextlib import nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradlab.base import errors
from gradlab.base.command import identity

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from gradlab.base.distributed import World


def main() -> None:
    """Entry point of `python -m gradlab` and of the `gradlab` script."""
    from gradlab.cli import arguments as cli

    arguments = sys.argv[1:]
    if {"--help", "-h"} & set(arguments):
        if main_rank():
            with suppress(BrokenPipeError):  # `--help | head`
                print(cli.help_text(), flush=True)
                return
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else it is tried again at exit
        return
    sys.exit(run(arguments))


def run(arguments: list[str]) -> int:
    """Run the arguments as a command does; returns the exit code, or on several ranks ends the process with it."""
    try:
        code = launch(arguments)
    except KeyboardInterrupt:
        code = 130
    if os.environ.get("WORLD_SIZE", "1") != "1":
        # Threads of the process group may outlive it, and now and then abort the process as the interpreter ends.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def main_rank() -> bool:
    return os.environ.get("RANK", "0") == "0"


def launch(arguments: list[str]) -> int:
    """Run Hydra on the arguments; returns the exit code."""
    from gradlab.base.lazy import lazy_import

    if "RANK" not in os.environ:
        lazy_import("torch")  # before anything imports it: most wrong commands are told without
    from gradlab.cli import arguments as cli

    logging.raiseExceptions = False  # a full disk is told once, by whoever needs it
    try:
        sys.path.insert(0, os.getcwd())  # a user's own modules, from a console script too
        return cli.run_hydra(arguments, main_rank())
    except Exception as error:
        message = errors.explain(error)
        if message is None:
            raise
        if main_rank():
            print(f"gradlab: {message}", file=sys.stderr)
        return errors.exit_code(error)
    finally:
        if "gradlab.base.distributed" in sys.modules:
            sys.modules["gradlab.base.distributed"].leave()


def run_job(cfg: DictConfig) -> int:
    """One job, from its composed configuration; never raises an Exception, so that a sweep goes on."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode
    from omegaconf import OmegaConf

    from gradlab.base import distributed
    from gradlab.base.lock import turn
    from gradlab.sweep.launchers import processes

    world = distributed.world()
    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    overrides: list[Any] = OmegaConf.to_container(hydra.overrides.task, resolve=False)  # type: ignore[assignment]
    group = hydra.runtime.choices.get("experiment") or "run"
    sweeping = hydra.mode == RunMode.MULTIRUN
    processes.enter()
    try:
        with turn(folder) if world.main else nullcontext():
            return execute(cfg, folder, overrides, group, world)
    except (Exception, SystemExit) as error:  # a user's module may call sys.exit
        return failed(error, folder, world, overrides if sweeping else None)


def failed(error: BaseException, folder: Path, world: World, overrides: list[str] | None) -> int:
    """One job (of a sweep, under these overrides) failed: say why, once, and leave the others their way.

    Returns the exit code."""
    from gradlab.cli import arguments as cli
    from gradlab.config.remedy import DoesNotApply
    from gradlab.runs import ending

    message, code = errors.explain(error, folder), errors.exit_code(error)
    refused = error if isinstance(error, DoesNotApply) else None
    if overrides is not None and refused:
        code = 0  # an answer, and not a fault of the command
    shown = "".join(traceback.format_exception(error)) if message is None else f"gradlab: {message}\n"
    if world.size > 1 and not all_failed(world):
        print(shown.replace("gradlab:", f"gradlab: rank {world.rank}:", 1), end="", file=sys.stderr, flush=True)
        os._exit(code)  # the launcher then ends the others, which would wait for this rank for ever
    if not world.main:
        return code
    print(shown, end="", file=sys.stderr, flush=True)
    if overrides is not None:
        record = refused.record() if refused else None
        ending.write_error(folder, message or repr(error), code, record, identity(overrides))
    elif folder.is_dir() and {p.name for p in folder.iterdir()} <= {".hydra", "gradlab.log"}:
        shutil.rmtree(folder, ignore_errors=True)  # nothing ran
    cli.restore_overrides()
    return code


def all_failed(world: World, seconds: float = 10.0) -> bool:
    """Whether every rank says in time that this job failed. Not by a collective: a rank that did not fail is in one."""
    from torch.distributed import distributed_c10d

    from gradlab.cli import arguments as cli

    store = distributed_c10d._get_default_store()
    names = [f"gradlab/failed/{len(cli.RESULTS)}/{rank}" for rank in range(world.size)]
    store.set(names[world.rank], "1")
    try:
        store.wait(names, timedelta(seconds=seconds))
    except Exception:
        return False
    return True


def execute(cfg: DictConfig, folder: Path, overrides: list[str], group: str, world: World) -> int:
    """Check the configuration, then run it; PyTorch is imported only in between."""
    from omegaconf import OmegaConf

    from gradlab.base.option import Invalid
    from gradlab.config.compose import check
    from gradlab.config.remedy import DoesNotApply, treated
    from gradlab.config.schema import to_config
    from gradlab.sweep import unfinished
    from gradlab.sweep.launchers import processes

    untreated = to_config(cfg)
    check(untreated)
    cfg, remedy = treated(cfg, overrides)
    config = to_config(cfg)
    plain: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]

    def say_what_runs() -> None:
        if remedy and world.main and (folder / ".hydra").is_dir():
            OmegaConf.save(cfg, folder / ".hydra" / "config.yaml")  # what runs; Hydra has written what was composed

    if unfinished.resuming() and (code := unfinished.kept(folder, overrides, world)) is not None:
        say_what_runs()
        return code
    from gradlab.report.pages import run_page
    from gradlab.runs.job import Job, builds
    from gradlab.train import build

    config.trainer.progress = processes.progress(config.trainer.progress)
    with build.threads(config.trainer.threads or processes.threads()):
        try:
            job = Job(config, plain, folder, overrides, group, world, remedy, write_page=run_page.finished)
        except Invalid as error:
            if remedy and builds(untreated, folder, world):  # then the remedy is what does not fit
                raise DoesNotApply(remedy["names"], str(error)) from None
            raise
        say_what_runs()
        return job.run()
