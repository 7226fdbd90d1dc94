"""What `exclude` leaves out: names of files and folders, or paths below the folder of the settings, with * and ?."""

from __future__ import annotations

import os
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

Excluded = Callable[[str], bool]


def exclusion(patterns: list[str], root: Path) -> Excluded:
    """Whether a path is left out: itself, or a folder below the root that it is in."""
    wanted = [pattern.removeprefix("./").rstrip("/") for pattern in patterns]

    def excluded(path: str) -> bool:
        relative = os.path.relpath(os.path.abspath(path), root).replace(os.sep, "/")
        parts = relative.split("/")
        if parts[0] == "..":
            parts = parts[-1:]
        heads = ["/".join(parts[: i + 1]) for i in range(len(parts))]
        return any(
            fnmatch(head if "/" in pattern else head.rsplit("/", 1)[-1], pattern)
            for head in heads
            for pattern in wanted
        )

    return excluded if wanted else lambda path: False
