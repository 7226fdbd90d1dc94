"""What a sweep left in its folder: its jobs, what was swept, and the command that began it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from gradlab.base.command import key
from gradlab.runs.folder_files import FolderFiles
from gradlab.runs.record import RunRecord

COPY = ".multirun.yaml"
"""A copy of multirun.yaml, written whole or not at all: every rank writes Hydra's, and a kill may cut that short."""


class SweepRecord(FolderFiles):
    """A sweep, read from its folder."""

    @cached_property
    def jobs(self) -> list[RunRecord]:
        """In their order."""
        found = (p.parent.parent for p in self.path.rglob(".hydra/overrides.yaml"))
        ordered = sorted(found, key=lambda p: (not p.name.isdigit(), int(p.name) if p.name.isdigit() else 0, p.name))
        return [RunRecord(path) for path in ordered]

    @cached_property
    def swept(self) -> list[str]:
        """The fields that are not the same in every job, in the order of the command."""
        return swept([job.overrides for job in self.jobs])

    @cached_property
    def hydra(self) -> dict[str, Any]:
        """What Hydra wrote into multirun.yaml; empty where that cannot be read."""
        return self.read_hydra(COPY if (self.path / COPY).is_file() else "multirun.yaml")


def swept(overrides: Sequence[Sequence[str]]) -> list[str]:
    """The fields that are not the same in all of these jobs' overrides, in the order of the command."""
    values: dict[str, list[str | None]] = {}
    for i, job in enumerate(overrides):
        for o in job:
            values.setdefault(key(o), [None] * len(overrides))[i] = o.partition("=")[2]
    return [name for name, given in values.items() if len(set(given)) > 1]
