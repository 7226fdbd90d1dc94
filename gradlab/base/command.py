"""What the small commands beside `python -m gradlab` share: flags, one-line errors, exit codes, commands to paste."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from typing import NoReturn

from gradlab.base import errors

INTERRUPTED = 130
"""Exit code of a run that was stopped, as of any program that Ctrl-C ends."""
WRONG = 2
"""Exit code of a wrong command."""


class Parser(argparse.ArgumentParser):
    """One line for a wrong flag instead of the usage."""

    def error(self, message: str) -> NoReturn:
        raise errors.Usage(f"{message}; see {self.prog} --help")


def exit_code(work: Callable[[], int]) -> int:
    """Do the work; a mistake of the user is reported in a line."""
    try:
        return work()
    except Exception as error:
        message = errors.explain(error)
        if message is None:
            raise
        print(f"gradlab: {message}", file=sys.stderr)
        return errors.exit_code(error)


def key(override: str) -> str:
    """What an override sets: the same for `a=1`, `+a=1`, `++a=1` and `~a`."""
    return override.lstrip("+~").split("=")[0]


def identity(overrides: list[str]) -> list[str]:
    """The overrides that decide a run, whether it was resumed or not."""
    return [o for o in overrides if key(o) != "resume"]


def command(overrides: list[str], module: str = "gradlab") -> str:
    """To be pasted into a shell."""
    return shlex.join(["python", "-m", module, *overrides])


def kept(overrides: list[str], replacing: list[str]) -> list[str]:
    """The run's own overrides, less those that others replace: with a group also the fields of its old option."""
    replaced = {key(o) for o in replacing} | {"expect", "resume"}
    return [o for o in overrides if key(o) not in replaced and key(o).split(".")[0] not in replaced]
