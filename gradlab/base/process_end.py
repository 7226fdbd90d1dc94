"""The end of a process."""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import NoReturn


def own_process() -> bool:
    """Whether the process is that of a command: not of a profiler, a debugger or a program that calls its `main`."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    command = (spec is not None and spec.name == "gradlab.__main__") or Path(sys.argv[0]).stem == "gradlab"
    return command and not (sys.gettrace() or sys.getprofile() or sys.flags.inspect)


def end_process(code: int) -> NoReturn:
    """End as the interpreter does, but without tearing PyTorch down, a quarter of a short command's time.

    Threads are waited for, what is registered with `atexit` runs, and open files are flushed; what only closing a file
    writes, as the end of an archive, is not written. Threads of a process group may outlive the group, and then
    sometimes abort the process while the interpreter shuts down: another reason to leave early.
    """
    for finish in (threading._shutdown, atexit._run_exitfuncs):  # type: ignore[attr-defined]
        try:
            finish()
        except KeyboardInterrupt:
            code = 130
        except Exception:
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    for thing in gc.get_objects():
        if issubclass(type(thing), io.IOBase) and thing not in (sys.stdout, sys.stderr):
            with suppress(Exception):
                thing.flush()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 120  # as the interpreter ends
    os._exit(code)
