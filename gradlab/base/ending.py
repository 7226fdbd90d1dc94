"""The end of a process."""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
import threading
from contextlib import suppress
from typing import NoReturn


def end_process(code: int) -> NoReturn:
    """End as the interpreter does, without taking PyTorch apart, which takes a quarter of a short command's time.

    Threads are waited for, what is registered with `atexit` runs, and open files are flushed, closed or not. Threads of
    a process group may outlive it, and now and then abort a process whose interpreter ends.
    """
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except KeyboardInterrupt:
        code = 130
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
