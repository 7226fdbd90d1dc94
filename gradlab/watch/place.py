"""Where a watch writes."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import torch

from gradlab.watch.parts import kind


class Place:
    """A folder that is made when there is something to write, by the first of the ranks."""

    def __init__(self, given: Any) -> None:
        """given: a path; None: a folder of its own in outputs/watch."""
        if given is not None and not isinstance(given, (str, os.PathLike)):
            raise TypeError(f"watch: folder is {kind(given)}, expected a path")
        self.own = given is None
        self.path = Path("outputs", "watch", time.strftime("%Y-%m-%d_%H-%M-%S")) if given is None else Path(given)
        """As it is told."""
        inside = next((p for p in (self.path, *self.path.parents) if p.exists()), self.path)
        if not inside.is_dir():
            raise ValueError(f"watch: folder is {str(self.path)!r}, but {inside} is a file")
        self.taken: Path | None = None
        """From the root on: a program may go elsewhere."""

    @property
    def main(self) -> bool:
        """Whether this process is the one that writes."""
        return self.taken is not None or first_rank()

    def take(self) -> Path | None:
        """The folder, made; None: another rank writes."""
        if self.taken is None and first_rank():
            try:
                if self.own:
                    self.path = fresh(self.path)
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ValueError(f"watch: folder is {str(self.path)!r}, which cannot be made: {error}") from None
            self.taken = self.path.absolute()
        return self.taken


def fresh(path: Path) -> Path:
    """A path, or that with a number, where no folder was: it is made, so that no other watch takes it."""
    made, number = path, 1
    while True:
        try:
            made.mkdir(parents=True)
            return made
        except FileExistsError:
            number += 1
            made = path.with_name(f"{path.name}_{number}")


def hold(folder: Path, until: contextlib.ExitStack) -> None:
    """Tell others that a process is at work in a folder, where there are locks."""
    with contextlib.suppress(ImportError, OSError):
        import fcntl

        handle = os.open(folder, os.O_RDONLY)
        until.callback(os.close, handle)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def first_rank() -> bool:
    """Whether this process is the first of several, or the only one."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank() == 0
    try:
        return int(os.environ.get("WORLD_SIZE", 1)) < 2 or int(os.environ.get("RANK", 0)) == 0
    except ValueError:
        return True
