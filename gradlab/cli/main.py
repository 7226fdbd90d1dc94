"""`python -m gradlab`: read the arguments, then have Hydra compose and run the jobs that they name (cli/job.py)."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress

from gradlab.base import errors
from gradlab.base.process_end import end_process, own_process
from gradlab.base.version import __version__
from gradlab.base.visible import printable
from gradlab.cli.help import BASH, help_on


def main() -> None:
    """Entry point of `python -m gradlab` and of the `gradlab` script."""
    arguments = sys.argv[1:]
    if {"--help", "-h"} & set(arguments):
        show(help_on(arguments))
    elif "--version" in arguments:
        show(f"gradlab {__version__}")
    else:
        code = run(arguments)
        if own_process():
            end_process(code)
        sys.exit(code)


def show(text: str) -> None:
    """Print on rank 0."""
    if not main_rank():
        return
    with suppress(BrokenPipeError):  # `--help | head`
        print(text, flush=True)
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else it is tried again at exit


def run(arguments: list[str]) -> int:
    """Run the arguments as a command does; returns the exit code, or on several ranks ends the process with it."""
    try:
        code = execute(arguments)
    except KeyboardInterrupt:
        code = 130
        if main_rank():
            print("gradlab: interrupted", file=sys.stderr)
    if os.environ.get("WORLD_SIZE", "1") != "1":
        end_process(code)
    return code


def main_rank() -> bool:
    return os.environ.get("RANK", "0") == "0"


def execute(arguments: list[str]) -> int:
    """Do what the arguments ask for; what a user did wrong is reported in one or two lines. Returns the exit code."""
    printable()
    from gradlab.base.lazy import import_uncollected, lazy_import

    if "RANK" in os.environ:
        import_uncollected("torch")
    else:
        lazy_import("torch")  # before anything imports it: most wrong commands are refused without
        lazy_import("torch._dynamo")
    logging.raiseExceptions = False  # a full disk is reported once, by whoever needs it
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come here
    try:
        sys.path.insert(0, os.getcwd())  # a user's own modules, from a console script too
        return command(arguments)
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


def command(given: list[str]) -> int:
    """Read the arguments, once, and launch what they name; returns the exit code."""
    from gradlab.cli import arguments, resume
    from gradlab.cli.session import begin
    from gradlab.config.compose import register

    session = begin()
    register()
    args = arguments.parse(given)
    if args.shell_completion and args.overrides == ["install=bash"]:
        show(BASH)
        return 0
    resume.resumed(args, session)
    arguments.choose_multirun(args)
    arguments.check_flags(args)
    arguments.check_overrides(args)
    if args.cfg:
        from gradlab.cli.show_config import show_config

        show_config(args, main_rank())
        return 0
    from gradlab.cli.launch import launch

    code = launch(args, session, main_rank())
    if session.to_fix is None or code not in (0, 1):
        return code
    from gradlab.cli.fix import after_run

    return after_run(run, session.to_fix, code)
