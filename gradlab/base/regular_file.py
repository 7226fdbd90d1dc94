"""Opening files of a folder that may come from elsewhere."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def regular(path: Path) -> int:
    """A handle of a regular file, for `open`; OSError for a pipe, which would block, or a device, without an end."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise OSError(f"{path.name} is no regular file")
