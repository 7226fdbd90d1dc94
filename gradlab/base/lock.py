"""Advisory locks between processes of one machine. Where a system or a file system has none, nothing is locked."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

if sys.platform != "win32":
    import fcntl


@contextmanager
def turn(path: Path, wait: bool = True) -> Iterator[None]:
    """Hold the lock of a folder or file that exists.

    wait: while another process holds it, print a line and wait; else continue without the lock.
    """
    if sys.platform == "win32":
        yield
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if wait:
                print(f"{path}: another process is at work here; waiting for it", flush=True)
                fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(handle)


def locked(path: Path) -> bool:
    """Whether a process holds the lock of a folder or file."""
    if sys.platform == "win32":
        return False
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(handle)
    return False
