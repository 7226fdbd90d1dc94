"""The folder that a watch writes to."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch

from gradlab.watch.arguments import type_name


class OutputFolder:
    """A folder that is created when there is something to write, by rank 0."""

    def __init__(self, given: Any) -> None:
        """given: a path; None: a new folder in outputs/watch."""
        if given is not None and not isinstance(given, (str, os.PathLike)):
            raise TypeError(f"watch: folder is {type_name(given)}, expected a path")
        self.new = given is None
        self.path = Path("outputs", "watch", time.strftime("%Y-%m-%d_%H-%M-%S")) if given is None else Path(given)
        """As it is reported, perhaps relative."""
        existing = next((p for p in (self.path, *self.path.parents) if p.exists()), self.path)
        if not existing.is_dir():
            raise ValueError(f"watch: folder is {str(self.path)!r}, but {existing} is a file")
        self.absolute: Path | None = None
        """Known once it is created: the program may change its working directory later."""

    @property
    def main(self) -> bool:
        """Whether this process is the one that writes."""
        return self.absolute is not None or is_first_rank()

    def create(self) -> Path | None:
        """The absolute path of the created folder; None if another rank writes."""
        if self.absolute is None and is_first_rank():
            try:
                if self.new:
                    self.path = create_unique(self.path)
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ValueError(f"watch: folder is {str(self.path)!r}, which cannot be created: {error}") from None
            self.absolute = self.path.absolute()
        return self.absolute


def create_unique(path: Path) -> Path:
    """Create a folder of this name, with a number if the name is taken, so that no other watch uses it."""
    unique, number = path, 1
    while True:
        try:
            unique.mkdir(parents=True)
            return unique
        except FileExistsError:
            number += 1
            unique = path.with_name(f"{path.name}_{number}")


def is_first_rank() -> bool:
    """Whether this process is rank 0, or the only one; also before the process group is initialized."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank() == 0
    try:
        return int(os.environ.get("WORLD_SIZE", 1)) < 2 or int(os.environ.get("RANK", 0)) == 0
    except ValueError:
        return True
