"""Runs a function in a fork of this process, which has imported everything and ends as a program does."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Fork:
    """A child process, and the files of its output."""

    pid: int
    out: Path
    err: Path

    def wait(self) -> int:
        """Exit code; negative: the signal that ended it."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def fork(call: Callable[[], object], folder: Path, name: str = "fork", timeout: int = 200, **env: str) -> Fork:
    """Call a function in a child process that works in `folder`. An exception ends it as it ends a program: with a
    traceback, the functions of `atexit` and exit code 1."""
    out, err = folder / f"{name}.out", folder / f"{name}.err"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forks of a process with threads, from Python 3.12 on
        pid = os.fork()
    if pid:
        return Fork(pid, out, err)
    code = 1
    try:
        signal.alarm(timeout)
        atexit._clear()  # functions of the parent
        os.chdir(folder)
        os.environ.update(env)
        sys.stdout, sys.stderr = out.open("w"), err.open("w")
        call()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)
