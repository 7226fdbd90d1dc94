"""Jobs that are one program: what they share, and into which chunks of lanes they are divided."""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gradlab.base import randomness
from gradlab.base.command import identity
from gradlab.base.distributed import World
from gradlab.base.errors import exit_code, explain
from gradlab.base.option import Invalid
from gradlab.data.stream import streamed
from gradlab.runs import diagnosis_file
from gradlab.runs.job import NO_VIEWS, Job, Views
from gradlab.sweep.vectorized import sharing
from gradlab.sweep.vectorized.equivalence import drawn
from gradlab.sweep.vectorized.lane import Lane
from gradlab.sweep.vectorized.machine import free_memory, spare_compiler
from gradlab.sweep.vectorized.planning import PlannedJob
from gradlab.sweep.vectorized.probe import probe
from gradlab.sweep.vectorized.stack import Stack
from gradlab.train import build, build_data

KEPT = 128 * 2**20
"""Bytes that lanes may keep for their backward passes together on a CPU: more lanes share the cost of calls, until
that is nothing beside the arithmetic."""
LEAST, MOST = 64, 1024
"""Lanes of a chunk, at least where there are so many jobs, and at most."""
MOST_ON_CPU = 256
"""Making a lane takes tens of milliseconds: the first results come when a chunk's lanes are all made."""


class Program:
    """Jobs that are one program: what they share is made once."""

    def __init__(
        self, jobs: Sequence[PlannedJob], loaded: dict[str, Any] | None = None, views: Views = NO_VIEWS
    ) -> None:
        """loaded: the data of other programs, to which this one's is added.

        views: of each job's run. Raises `Invalid` for jobs that are no lanes.
        """
        self.views = views
        self.jobs, loaded = list(jobs), {} if loaded is None else loaded
        first = self.jobs[0].config
        self.device = build.pick_device(first, World())
        name = repr((first.data, first.loss, self.device))
        if name not in loaded:
            loaded[name] = self.load(first)
        self.data = loaded[name]
        self.updates = build.planned_updates(first, len(self.data[0].train), 1)
        """Updates of each job if none is skipped."""
        spare_compiler()
        with build.threads(1):
            with silence():
                first_two = [self.job(planned) for planned in self.jobs[:2]]
            if first.schedule.watched:
                raise Invalid("schedule", "plateau", "follows the evaluations of each job")
            if self.data[1].needs_term_sums:
                raise Invalid("loss", "custom", "has several terms, or a count that only its outputs tell")
            self.used, self.kept, self.state = probe(first_two)
        self.width = max(1, KEPT // self.kept if self.device.type == "cpu" else MOST)
        """Lanes that go through the model together."""
        self.cost = self.updates * self.kept
        """What a job costs, to weigh programs against each other."""

    def load(self, first: Any) -> Any:
        """The data and the loss of all jobs. Raises `Invalid` for data that each seed would make another."""
        randomness.seed_all(first.seed)
        before = drawn()
        data = build_data.load_data(first, self.device)
        if streamed(data[0].train):
            raise Invalid("data", data[0].name, "is streamed, and read by each job by itself")
        if drawn() != before:
            raise Invalid("data", data[0].name, "draws from the generators that a job's seed decides")
        return data

    def job(self, planned: PlannedJob) -> Job:
        """A job whose trainer is a lane. It prints nothing: its results are in its folder."""
        planned.config.trainer.progress = "none"
        make = functools.partial(Lane, data=self.data)
        return Job(
            planned.config,
            planned.plain,
            planned.folder,
            planned.overrides,
            planned.group,
            World(),
            planned.remedy,
            make,
            self.views,
        )

    def chunks(self, workers: int, lanes: int | None, memory: float | None) -> list[list[int]]:
        """Places of the jobs that are trained together.

        workers: processes that share them. lanes: of one chunk at most; None: some chunks for each process,
        so that all are busy to the end and a sweep that is killed loses little. memory: GiB of all processes; None:
        half of what is free.
        """
        budget = int((memory * 2**30 if memory else free_memory(self.device) / 2) / workers)
        self.width = max(1, min(self.width, budget // (2 * self.kept)))
        fits = (budget - self.width * self.kept) // self.state
        jobs = len(self.jobs)
        wanted = lanes or max(LEAST, -(-jobs // (4 * workers)))
        most = MOST_ON_CPU if self.device.type == "cpu" else MOST
        size = max(1, min(wanted, fits, -(-jobs // workers), most))
        units: dict[tuple[int, str], list[int]] = {}  # jobs that begin as one row stay together
        for place, job in enumerate(self.jobs):
            units.setdefault((job.config.seed, sharing.apart(job.config)), []).append(place)
        by_seed: dict[int, list[list[int]]] = {}
        for (seed, _), unit in units.items():
            by_seed.setdefault(seed, []).append(unit)
        made, few = [], list[list[int]]()
        for group in by_seed.values():  # lanes of one seed share their samples
            if 2 * sum(map(len, group)) < size and len(by_seed) > 1:
                few += group
            else:
                made += dealt(group, size)
        return made + dealt(few, size)

    def run(self, places: Sequence[int], ended: Callable[[int, int], None], beat: Callable[[int], None]) -> None:
        """Train these of the jobs together. A job that cannot begin fails, and not the others.

        ended: gets the place and exit code of each job that ended. beat: gets the number of updates made.
        """
        begun: dict[int, int] = {}
        jobs = []
        with silence(), build.threads(1 if self.device.type == "cpu" else None):
            for place in places:
                try:
                    job = self.job(self.jobs[place])
                except (Exception, SystemExit) as error:  # a user's module may call sys.exit
                    ended(place, failed(self.jobs[place], error))
                    continue
                begun[id(job)] = place
                jobs.append(job)
            if jobs:

                def job_failed(job: Job, error: Exception) -> int:
                    return failed(self.jobs[begun[id(job)]], error)

                finished: Any = lambda job, code: ended(begun[id(job)], code)  # noqa: E731
                Stack(jobs, finished, job_failed, self.used, beat, self.width).run()
        del jobs
        gc.collect()  # a lane, its job and its stack refer to each other: without this they would stay for many chunks


def dealt(units: list[list[int]], size: int) -> list[list[int]]:
    """Parts of at most `size`, each with units from the whole grid: runs that end early are spread over all."""
    parts: list[list[int]] = [[] for _ in range(-(-sum(map(len, units)) // size))]
    for unit in units:
        min(parts, key=len).extend(unit)
    return [part[i : i + size] for part in parts for i in range(0, len(part), size)]


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Suppress what jobs print: hundreds would print it at once, and it is in their folders."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def failed(planned: PlannedJob, error: BaseException) -> int:
    """Report why a job could not run, and write its diagnosis.json; returns its exit code."""
    message = explain(error, planned.folder)
    shown = f"gradlab: {message}" if message else "".join(traceback.format_exception(error))
    print(f"job {planned.number}: {shown}", file=sys.stderr, flush=True)
    message = message or repr(error)
    diagnosis_file.write_error(planned.folder, message, code := exit_code(error), None, identity(planned.overrides))
    return code
