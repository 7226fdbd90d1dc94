"""Files of a folder that may be from elsewhere."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def regular(path: Path) -> int:
    """A handle of a file, for `open`: a named pipe would wait, and a device go on, for ever; they are OSErrors."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise OSError(f"{path.name} is no regular file")
