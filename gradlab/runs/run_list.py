"""The runs and sweeps below a folder."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from gradlab.base.command import key
from gradlab.base.fields import value
from gradlab.runs.record import NUMBERS, RunRecord
from gradlab.runs.sweep_record import swept

WRITTEN = ("diagnosis.json", "metrics.jsonl", ".hydra", "config.yaml")
"""The files whose time is that of a run's last work: the first that is there."""
COMBINED = {"loss": min, "eval_loss": min, "accuracy": max, "grad_norm": max, "exit_code": max}
"""How a sweep's number is made from those of its jobs; all others are added up."""


class Entry:
    """A run, or a job of a sweep, in a list. Its files are read when they are asked for."""

    def __init__(self, path: Path, name: str, kind: str, time: float = 0.0) -> None:
        """name: its folder, relative to the one that was searched. kind: run, job or sweep.

        time: of its last work, in seconds of the epoch."""
        self.path, self.name, self.kind, self.time = path, name, kind, time
        self.jobs: list[Entry] = []

    @property
    def when(self) -> str:
        return datetime.fromtimestamp(self.time).strftime("%Y-%m-%d %H:%M")

    @cached_property
    def record(self) -> RunRecord:
        return RunRecord(self.path)

    @cached_property
    def verdict(self) -> str:
        """The verdict, or what stands for it."""
        return self.record.state

    @cached_property
    def numbers(self) -> dict[str, Any]:
        """The key numbers: see `RunRecord.numbers`."""
        return self.record.numbers

    @cached_property
    def overrides(self) -> list[str]:
        return list(self.record.overrides)

    @cached_property
    def fields(self) -> dict[str, Any]:
        """Dotted field -> value of its configuration; a group's name -> the option that was chosen."""
        return self.record.fields | {group: value(str(option)) for group, option in self.record.choices.items()}


class SweepEntry(Entry):
    """A sweep with its jobs, in a list."""

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(path, name, "sweep")

    @property
    def counts(self) -> dict[str, int]:
        """How many jobs had each verdict, the most frequent first."""
        return dict(Counter(job.verdict for job in self.jobs).most_common())

    @cached_property
    def verdict(self) -> str:
        return ", ".join(f"{count} {verdict}" for verdict, count in self.counts.items())

    @cached_property
    def numbers(self) -> dict[str, Any]:
        """The lowest losses, the largest norm and accuracy, the sum of the others."""
        found: dict[str, Any] = {}
        for name in NUMBERS:
            there = [v for job in self.jobs if (v := job.numbers.get(name)) is not None and v == v]
            found[name] = COMBINED.get(name, sum)(there) if there else None
        return found

    @cached_property
    def overrides(self) -> list[str]:
        """What was swept, with the number of its values; then what all jobs have."""
        return differing([job.overrides for job in self.jobs])


def find(root: Path) -> list[Entry]:
    """Runs and sweeps, newest first; their files are not read yet."""
    found = list(search(root, root, None))
    for entry in found:
        if isinstance(entry, SweepEntry):
            entry.time = max((job.time for job in entry.jobs), default=modified(str(entry.path / "multirun.yaml")))
            entry.jobs.sort(key=lambda job: natural(job.name))
    return sorted(found, key=lambda entry: -entry.time)


def search(folder: Path, root: Path, sweep: SweepEntry | None) -> Iterator[Entry]:
    """Jobs are added to their sweep; everything else is yielded."""
    try:
        with os.scandir(folder) as entries:
            names = {entry.name: entry for entry in entries}
    except OSError:
        return
    name = os.path.relpath(folder, root)
    if names.keys() & {".hydra", "metrics.jsonl", "diagnosis.json"}:
        if sweep is not None:
            sweep.jobs.append(Entry(folder, name, "job", last_written(names)))
            return
        yield Entry(folder, name, "run", last_written(names))
        for entry in names.values():  # the other optimizers of a watched loop
            if re.fullmatch(r"optimizer\d+", entry.name) and entry.is_dir(follow_symlinks=False):
                yield from search(folder / entry.name, root, None)
        return
    if "multirun.yaml" in names and sweep is None:
        sweep = SweepEntry(folder, name)
        yield sweep
    for entry in names.values():
        if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
            yield from search(folder / entry.name, root, sweep)


def last_written(names: dict[str, os.DirEntry[str]]) -> float:
    """The time of a run's last work."""
    return next((modified(names[name].path) for name in WRITTEN if name in names), 0.0)


def modified(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def natural(name: str) -> list[Any]:
    """A key that sorts 2 before 10."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name)]


def differing(jobs: Sequence[Sequence[str]]) -> list[str]:
    """The fields in which jobs differ, each with the number of its values; then the overrides that all jobs have."""
    names = swept(jobs)
    values = {n: {o.partition("=")[2] for job in jobs for o in job if key(o) == n} for n in names}
    same = [o for o in (jobs[0] if jobs else []) if key(o) not in names]
    return [f"{name}=({len(given)})" for name, given in values.items()] + same
