"""Launch the jobs of a sweep as lanes: compose, group, train, and print which were trained how."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus, run_job, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from gradlab.base.command import INTERRUPTED, identity
from gradlab.base.errors import Usage
from gradlab.base.lock import turn
from gradlab.base.option import Invalid
from gradlab.config.remedy import treated
from gradlab.runs import diagnosis_file
from gradlab.runs.job import NO_VIEWS, Views
from gradlab.runs.objective import objective
from gradlab.runs.record import RunRecord
from gradlab.sweep.grid.config_loader import SweepConfigLoader
from gradlab.sweep.grid.job_config import plain_value
from gradlab.sweep.vectorized.grouping import groups
from gradlab.sweep.vectorized.options import VectorizedOption
from gradlab.sweep.vectorized.planning import PlannedJob, plan, refuse
from gradlab.sweep.vectorized.progress import FIRST_SECONDS, SweepProgress
from gradlab.sweep.vectorized.workers import Chunk, Workers

if TYPE_CHECKING:
    from gradlab.sweep.vectorized.program import Program


@dataclass(frozen=True)
class SweepContext:
    """What the launcher plugin hands in."""

    option: VectorizedOption
    config: DictConfig
    """The sweep's own configuration, with Hydra's."""
    loader: SweepConfigLoader
    hydra: HydraContext
    task_function: TaskFunction
    """Runs one job alone."""
    views: Views = NO_VIEWS
    """What is made of each finished run for people to see."""


def launch(context: SweepContext, job_overrides: Sequence[Sequence[str]], first: int) -> list[JobReturn]:
    """Run all jobs; each gets its folder as if it had run alone. Returns their objectives as Hydra wants them."""
    if "RANK" in os.environ:
        raise Usage("hydra/launcher=vectorized: not under torchrun, whose processes share each job")
    context.option.check()
    setup_globals()
    folder = Path(str(context.config.hydra.sweep.dir))
    folder.mkdir(parents=True, exist_ok=True)
    codes: dict[int, int] = {}
    folders: dict[int, Path] = {}
    before = HydraConfig.instance().cfg
    try:
        with turn(folder):
            planned, printed = list[PlannedJob](), time.monotonic()
            for i, overrides in enumerate(job_overrides):
                job = plan(context.loader, context.config, list(overrides), first + i, codes, folders)
                planned += [job] if job else []
                if time.monotonic() - printed > FIRST_SECONDS:
                    printed = time.monotonic()
                    print(f"{i + 1} of {len(job_overrides)} jobs composed", flush=True)
            Launch(context, planned, codes).run()
    finally:
        HydraConfig.instance().cfg = before
    wanted = plain_value(context.config.objective)
    return [job_return(list(o), folders[first + i], wanted) for i, o in enumerate(job_overrides)]


def job_return(overrides: list[str], folder: Path, wanted: Any) -> JobReturn:
    made = JobReturn()
    made.overrides, made.status = overrides, JobStatus.COMPLETED
    made.hydra_cfg = OmegaConf.create({"hydra": {"runtime": {"output_dir": str(folder.absolute())}}})
    try:
        made.return_value = objective(folder, wanted)
    except Invalid as error:
        made.status, made.return_value = JobStatus.FAILED, error
    return made


class Launch:
    """The jobs of one launch, in groups that are one program each."""

    def __init__(self, context: SweepContext, jobs: list[PlannedJob], codes: dict[int, int]) -> None:
        """codes: exit codes by the job's number, which this adds to."""
        self.context, self.jobs, self.codes = context, jobs, codes
        self.programs: list[Program] = []

    def run(self) -> None:
        began = time.monotonic()
        self.pretrain()
        together, alone = groups(self.jobs)
        if together:
            alone += self.make_programs(together)
            self.train()
        if alone:
            reasons = Counter(why for _, why in alone)
            print(f"run one by one: {'; '.join(f'{n} ({why})' for why, n in reasons.items())}", flush=True)
            for job, _ in alone:
                self.codes[job.number] = self.run_alone(job)
        if self.jobs:
            jobs, programs = sum(len(p.jobs) for p in self.programs), len(self.programs)
            lanes = f"{jobs} jobs as lanes of {programs} program{'s' * (programs != 1)}"
            print(f"{lanes}, {len(alone)} one by one, {time.monotonic() - began:.0f} s", flush=True)

    def pretrain(self) -> None:
        """Give jobs with `pretrain` their initial weights, as each would get them alone: jobs of a seed share them."""
        wanted = [job for job in self.jobs if job.config.pretrain and not job.config.init_from]
        if not wanted:
            return
        from gradlab.base.distributed import World
        from gradlab.train import build
        from gradlab.train.pretraining import pretrained

        found: dict[tuple[Any, ...], str] = {}
        for job in wanted:
            c = job.config
            key = (c.pretrain, c.trainer.device, c.trainer.threads, c.seed)
            try:
                if key not in found:
                    with build.threads(c.trainer.threads):
                        found[key] = pretrained(c, World())
            except Exception as error:
                self.codes[job.number] = refuse(job.folder, job.overrides, error)
            else:
                c.init_from = found[key]
        self.jobs = [job for job in self.jobs if job.number not in self.codes]

    def make_programs(self, together: list[list[PlannedJob]]) -> list[tuple[PlannedJob, str]]:
        """A program of each group; returns the jobs that cannot be lanes, and why."""
        from gradlab.sweep.vectorized.program import Program

        alone: list[tuple[PlannedJob, str]] = []
        loaded: dict[str, Any] = {}
        for jobs in together:
            try:
                self.programs.append(Program(jobs, loaded, self.context.views))
            except Invalid as error:
                alone += [(job, str(error)) for job in jobs]
            except (Exception, SystemExit) as error:  # each job reports it when it runs alone
                alone += [(job, f"{type(error).__name__} as they began") for job in jobs]
        return alone

    def train(self) -> None:
        """Train all programs, cut into chunks: one worker per core; on a CUDA device in this process."""
        if not self.programs:
            return
        from gradlab.sweep.vectorized.machine import can_fork, keep_memory

        option = self.context.option
        cores = len(os.sched_getaffinity(0))
        number = 0 if not can_fork() else cores if option.workers is None else option.workers
        chunks = [
            Chunk(i, places)
            for i, program in enumerate(self.programs)
            for places in program.chunks(max(number, 1), option.lanes, option.memory)
        ]
        chunks.sort(key=lambda chunk: -self.programs[chunk.program].cost * len(chunk.places))
        jobs = sum(len(program.jobs) for program in self.programs)
        progress = SweepProgress(jobs, sum(p.updates * len(p.jobs) for p in self.programs))
        keep_memory()

        def ended(chunk: Chunk, place: int, code: int) -> None:
            self.codes[self.programs[chunk.program].jobs[place].number] = code
            progress.ended()

        try:
            if number:
                workers = Workers(self.work, min(number, len(chunks)))
                try:
                    workers.run(chunks, ended, progress.made, self.jobs_failed)
                finally:
                    workers.end()
            else:
                for chunk in chunks:
                    self.in_this_process(chunk, ended, progress.made)
        finally:
            progress.finish()

    def in_this_process(
        self, chunk: Chunk, ended: Callable[[Chunk, int, int], None], beat: Callable[[int], None]
    ) -> None:
        """Train a chunk; an error costs no job of another chunk."""
        left = list(chunk.places)

        def job_ended(place: int, code: int) -> None:
            left.remove(place)
            ended(chunk, place, code)

        try:
            self.work(chunk, job_ended, beat)
        except Exception:
            self.jobs_failed(chunk, left, traceback.format_exc())

    def jobs_failed(self, chunk: Chunk, places: list[int], why: str) -> None:
        """Report jobs of a chunk that were not trained to their end."""
        for place in places:
            job = self.programs[chunk.program].jobs[place]
            self.codes[job.number] = 1
            diagnosis_file.write_error(job.folder, why, 1, None, identity(job.overrides))
        print(f"gradlab: {len(places)} jobs were lost: {why}", file=sys.stderr, flush=True)

    def work(self, chunk: Chunk, ended: Callable[[int, int], None], beat: Callable[[int], None]) -> None:
        """Train a chunk, in a worker or in this process. ended: gets each job's place and exit code."""
        program = self.programs[chunk.program]
        for place in chunk.places:
            job = program.jobs[place]
            composed = self.context.loader.compose(self.context.config, job.overrides)
            composed.activate(job.number)
            composed.write(job.folder, treated(composed.task, job.overrides).composed if job.remedy else None)
        program.run(chunk.places, ended, beat)

    def run_alone(self, job: PlannedJob) -> int:
        """Run a job as Hydra's own launcher does."""
        cfg = self.context.loader.loader.load_sweep_config(self.context.config, job.overrides)
        with open_dict(cfg):
            cfg.hydra.job.id = cfg.hydra.job.num = job.number
        made = run_job(
            hydra_context=self.context.hydra,
            task_function=self.context.task_function,
            config=cfg,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )
        _ = made.return_value  # raises what ended it
        return int(RunRecord(job.folder).diagnosis.get("exit_code", INTERRUPTED))
