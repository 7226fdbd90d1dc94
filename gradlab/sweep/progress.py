"""How far a sweep is, whatever runs its jobs: read from their folders at growing intervals, by a thread."""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import suppress
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from gradlab.base.errors import BAD_VALUES
from gradlab.runs.record import RunRecord

PAUSES = (4.0, 6.0, 10.0, 20.0, 40.0)
"""Seconds before each of the first lines; then a minute."""
LAST = 4096
"""Bytes at the end of metrics.jsonl, which hold a whole line."""


def duration(seconds: float) -> str:
    """A time in words: 50 s, 12 min, 3.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def begins(folder: Path, jobs: int) -> str:
    """What is known before a sweep begins. jobs: of the whole sweep."""
    took = [seconds for job in ended(folder) if (seconds := seconds_of(folder / job)) is not None]
    if not took:
        return f"{jobs} job{'s' * (jobs != 1)}"
    mean = sum(took) / len(took)
    left = f"; the others, one by one: about {duration(mean * (jobs - len(took)))}" if jobs > len(took) else ""
    return f"{jobs} jobs, of which {len(took)} have ended, after {duration(mean)} each{left}"


def ended(folder: Path) -> set[str]:
    """Folders of the jobs that left a diagnosis.json."""
    return having("diagnosis.json", folder)


def having(name: str, folder: Path) -> set[str]:
    """Folders of jobs that hold this file; none before the sweep has a folder."""
    try:
        with os.scandir(folder) as entries:
            return {one.name for one in entries if os.path.isfile(f"{one.path}/{name}")}
    except OSError:
        return set()


def seconds_of(folder: Path) -> float | None:
    seconds = RunRecord(folder).outcome.get("seconds")
    return float(seconds) if isinstance(seconds, int | float) else None


class SweepWatch:
    """Prints lines until it is stopped."""

    def __init__(self, folder: Path, jobs: int | None) -> None:
        """jobs: how many there will be, where that is known."""
        self.folder, self.jobs = folder, jobs
        self.before, self.began = ended(folder), time.monotonic()
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.follow, name="sweep progress", daemon=True)
        self.thread.start()

    def follow(self) -> None:
        for seconds in chain(PAUSES, repeat(60.0)):
            if self.stopped.wait(seconds):
                return
            with suppress(OSError, *BAD_VALUES):  # the folder is removed, or damaged; what is printed is no longer read
                print(self.text(), flush=True)

    def stop(self) -> None:
        self.stopped.set()
        self.thread.join()

    def text(self) -> str:
        done, passed = ended(self.folder), time.monotonic() - self.began
        parts = [self.part(name) for name in self.running(done)]
        of = f"of {self.jobs} " if self.jobs else ""
        text = f"{len(done)} {of}jobs have ended, {len(parts)} run, {duration(passed)}"
        made = len(done - self.before) + sum(parts)
        if not self.jobs or not made:
            return text
        left = max(self.jobs - len(self.before) - made, 0)
        return f"{text}, about {duration(passed * left / made)} left"

    def running(self, done: set[str]) -> list[str]:
        """Jobs that have begun to train."""
        return [name for name in having("environment.json", self.folder) if name not in done]

    def part(self, job: str) -> float:
        """How much of its updates a job has made."""
        folder, line = self.folder / job, dict[str, Any]()
        with suppress(OSError, *BAD_VALUES), (folder / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LAST))
            line |= json.loads(file.read().splitlines()[-2])  # the last may not be whole
        planned, update = RunRecord(folder).environment.get("planned"), line.get("update")
        return min(update / planned, 1.0) if isinstance(planned, int) and isinstance(update, int) and planned else 0.0
