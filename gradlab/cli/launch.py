"""Hydra around the jobs: it composes each, and runs one or a sweep; the exit code is that of the worst."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra._internal.hydra import Hydra
from hydra._internal.utils import _run_app, _run_hydra, create_config_search_path, get_args_parser
from hydra.core.global_hydra import GlobalHydra

from gradlab.base.command import INTERRUPTED, key
from gradlab.base.conf import conf_dir
from gradlab.base.errors import EXTRAS, package
from gradlab.base.signals import handled
from gradlab.cli import job
from gradlab.cli.session import Session
from gradlab.config.compose import SILENT
from gradlab.runs.sweep_record import COPY
from gradlab.train.interrupt import ASKED


def launch(args: argparse.Namespace, session: Session, main_rank: bool) -> int:
    """Run Hydra on arguments that are read and checked; raises what is wrong with them."""
    if not main_rank:
        args.overrides += SILENT
    try:
        with interrupts_between_jobs_delayed(session):
            if mode_is_known(args):
                run_in_mode(args)
            else:
                _run_hydra(args, get_args_parser(), job.task, str(conf_dir()), "config")
    except (Exception, KeyboardInterrupt) as error:
        for folder in session.sweeps if main_rank else ():
            if folder.is_dir() and {p.name for p in folder.iterdir()} <= {"multirun.yaml", COPY}:
                shutil.rmtree(folder, ignore_errors=True)  # no job began: a wrong command, which leaves nothing
            elif ended_early(error, folder):
                return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
        raise
    finally:
        session.stop_watching()
    return max(session.exit_codes, default=0)


@contextmanager
def interrupts_between_jobs_delayed(session: Session) -> Iterator[None]:
    """Between two jobs of a sweep Ctrl-C, or SIGTERM, waits for the next one; a second one does not.

    Meanwhile Hydra composes: OmegaConf, stopped anywhere, may fail with errors of its own, or go on.
    """
    ASKED.clear()
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    if "RANK" in os.environ:
        del usual[signal.SIGTERM]  # by which torchrun ends ranks: perhaps in a collective, where no handler is called
    numbers = [number for number, handler in usual.items() if signal.getsignal(number) is handler]

    def ask(number: int, frame: Any) -> None:
        if not session.between_jobs or ASKED.is_set():
            raise KeyboardInterrupt
        ASKED.set()

    with handled(dict.fromkeys(numbers, ask)):
        yield


def mode_is_known(args: argparse.Namespace) -> bool:
    """Whether the arguments alone tell a run from a multirun, because no folder of the user's own takes part.

    Of gradlab's files only those of `sweep` set hydra.mode, and these are a multirun already (`choose_multirun`).
    """
    others = (args.config_dir, args.config_name, args.config_path, args.info, args.hydra_help, args.shell_completion)
    return not any(others) and not {"hydra.mode", "hydra.searchpath"}.intersection(map(key, args.overrides))


def run_in_mode(args: argparse.Namespace) -> None:
    """What Hydra does, but for its composing everything once beforehand to learn the mode."""
    hydra = Hydra.create_main_hydra2("__main__", create_config_search_path(str(conf_dir())))
    try:
        _run_app(not args.multirun, args.multirun, None, hydra, "config", job.task, args.overrides)
    finally:
        GlobalHydra.instance().clear()


def ended_early(error: BaseException, folder: Path) -> bool:
    """Whether a sweep was stopped, or lost one of its processes; then report what has been done."""
    from gradlab.cli.sweep_end import conclude

    lost = package(type(error).__module__) in EXTRAS.values()
    if not lost and not isinstance(error, KeyboardInterrupt):
        return False
    conclude(folder)
    if lost:
        print(f"gradlab: a process of the sweep was lost: {' '.join(str(error).split())[:200]}", file=sys.stderr)
    return True
