"""The jobs of one round of a search: finished ones are read, the others launched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gradlab.base.command import INTERRUPTED, key
from gradlab.base.distributed import World
from gradlab.runs.record import RunRecord
from gradlab.sweep.grid.axes import Point, is_number
from gradlab.sweep.resume import clear, finished
from gradlab.sweep.search.judge import FinishedJob, read
from gradlab.sweep.search.rounds import Interrupted

LaunchJobs = Callable[[list[list[str]], int], Sequence[Any]]
"""Runs jobs with these overrides, numbered from the given number; returns Hydra's JobReturn of each."""


class RoundLauncher:
    """Numbers jobs in the order in which they are asked for, and keeps the result of each list of overrides."""

    def __init__(
        self, launch: LaunchJobs, check: Callable[[list[list[str]]], None], folder: Path, world: World | None = None
    ) -> None:
        """check: raises if jobs cannot be composed. folder: the sweep's; jobs finished in it are not run again."""
        self.launch, self.check, self.folder, self.world = launch, check, folder, world or World()
        self.seen: dict[Point, FinishedJob] = {}
        self.returned: list[Sequence[Any]] = []
        self.numbers, found = self.world.broadcast(earlier_jobs(folder) if self.world.main else None)
        self.seen |= found
        self.begun = self.numbers.keys() - found.keys()
        self.next = max(self.numbers.values(), default=-1) + 1

    def check_kinds(self, jobs: list[Point]) -> None:
        """Raises if jobs cannot be composed; of those that differ in numbers only, one is checked."""
        kinds = {tuple(key(o) if is_number(o.partition("=")[2]) else o for o in job): job for job in jobs}
        self.check([list(job) for job in kinds.values()])

    def run(self, jobs: list[Point]) -> list[FinishedJob]:
        """The result of each job. Raises `Interrupted` if a job was interrupted."""
        todo = [job for job in dict.fromkeys(jobs) if job not in self.seen]
        if todo and not self.returned:
            self.check([list(job) for job in todo])  # a wrong command shows in the first round
        for job in todo:
            if job not in self.numbers:
                self.numbers[job], self.next = self.next, self.next + 1
        for batch in consecutive(sorted(todo, key=self.numbers.__getitem__), self.numbers):
            self.launch_batch(batch)
        return [self.seen[job] for job in jobs]

    def launch_batch(self, batch: list[Point]) -> None:
        first = self.numbers[batch[0]]
        if self.world.main:
            for job in self.begun & set(batch):
                clear(self.folder / str(self.numbers[job]))  # files of a killed run
        self.world.barrier()
        returned = self.launch([list(job) for job in batch], first)
        self.returned.append(returned)
        _ = [one.return_value for one in returned]  # raises an exception that the launcher stored
        folders = [folder_of(one) or self.folder / str(first + i) for i, one in enumerate(returned)]
        diagnoses = self.world.broadcast([read(path) for path in folders] if self.world.main else None)
        for job, path, one in zip(batch, folders, diagnoses, strict=True):
            self.seen[job] = FinishedJob(path.name, one)
        if any(one.get("exit_code", INTERRUPTED) == INTERRUPTED for one in diagnoses):
            raise Interrupted


def folder_of(returned: Any) -> Path | None:
    """The folder that Hydra gave a job."""
    hydra = getattr(returned, "hydra_cfg", None)
    return Path(hydra.hydra.runtime.output_dir) if hydra is not None else None


def consecutive(jobs: Sequence[Point], numbers: dict[Point, int]) -> Iterator[list[Point]]:
    """Lists of jobs with consecutive numbers: a launcher counts up from the first."""
    batch: list[Point] = []
    for job in jobs:
        if batch and numbers[job] != numbers[batch[-1]] + 1:
            yield batch
            batch = []
        batch.append(job)
    if batch:
        yield batch


def earlier_jobs(folder: Path) -> tuple[dict[Point, int], dict[Point, FinishedJob]]:
    """Numbers of the jobs that an interrupted sweep started, and the results of those that finished."""
    numbers: dict[Point, int] = {}
    seen: dict[Point, FinishedJob] = {}
    for stored in folder.glob("*/.hydra/overrides.yaml"):
        path = stored.parent.parent
        if not path.name.isdigit() or not (overrides := RunRecord(path).typed):
            continue
        job = tuple(overrides)
        numbers[job] = int(path.name)
        if finished(path, overrides) is not None:
            seen[job] = FinishedJob(path.name, read(path))
    return numbers, seen
