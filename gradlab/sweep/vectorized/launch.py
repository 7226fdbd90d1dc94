"""Launch the jobs of a sweep as lanes: compose, group, train, and say what was done how."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus, run_job, setup_globals
from omegaconf import OmegaConf, open_dict

from gradlab.base.command import identity
from gradlab.base.errors import Usage
from gradlab.base.lock import turn
from gradlab.base.option import require
from gradlab.config.remedy import treated
from gradlab.runs import ending
from gradlab.runs.job import WritePage
from gradlab.sweep.grid.planning import plan, refused
from gradlab.sweep.vectorized.grouping import Planned, groups
from gradlab.sweep.vectorized.progress import PLAIN_SECONDS, SweepProgress
from gradlab.sweep.vectorized.workers import Chunk, Workers


def launch(
    launcher: Any, job_overrides: Sequence[Sequence[str]], first: int, write_page: WritePage | None = None
) -> list[JobReturn]:
    """Run all jobs; each has its folder as if it had run alone. Returns their exit codes as Hydra wants them."""
    if "RANK" in os.environ:
        raise Usage("hydra/launcher=vectorized: not under torchrun, whose processes share each job")
    settings = launcher.settings
    for name, least in (("workers", 0), ("lanes", 1), ("memory", 0)):
        given = settings.get(name)
        fits = given is None or (given > 0 if name == "memory" else given >= least)
        require(fits, f"hydra.launcher.{name}", given, f"null or {'> 0' if name == 'memory' else f'>= {least}'}")
    setup_globals()
    folder = Path(str(launcher.config.hydra.sweep.dir))
    folder.mkdir(parents=True, exist_ok=True)
    codes: dict[int, int] = {}
    folders: dict[int, Path] = {}
    before = HydraConfig.instance().cfg
    try:
        with turn(folder):
            planned, said = [], time.monotonic()
            for i, overrides in enumerate(job_overrides):
                planned.append(plan(launcher, list(overrides), first + i, codes, folders))
                if time.monotonic() - said > PLAIN_SECONDS:
                    said = time.monotonic()
                    print(f"{i + 1} of {len(job_overrides)} jobs composed", flush=True)
            Launch(launcher, [p for p in planned if p is not None], codes, write_page).run()
    finally:
        HydraConfig.instance().cfg = before
    return [returned(list(o), codes.get(first + i, 1), folders.get(first + i)) for i, o in enumerate(job_overrides)]


def returned(overrides: list[str], code: int, folder: Path | None) -> JobReturn:
    made = JobReturn()
    made.overrides, made.status, made.return_value = overrides, JobStatus.COMPLETED, code
    if folder is not None:
        made.hydra_cfg = OmegaConf.create({"hydra": {"runtime": {"output_dir": str(folder.absolute())}}})
    return made


class Launch:
    """The jobs of one launch, in groups that are one program each."""

    def __init__(
        self, launcher: Any, jobs: list[Planned], codes: dict[int, int], write_page: WritePage | None = None
    ) -> None:
        self.launcher, self.jobs, self.codes, self.write_page = launcher, jobs, codes, write_page
        self.settings = launcher.settings
        self.programs: list[Any] = []

    def run(self) -> None:
        began = time.monotonic()
        self.pretrain()
        together, alone = groups(self.jobs)
        if together:
            from gradlab.base.option import Invalid
            from gradlab.sweep.vectorized.program import Program

            loaded: dict[str, Any] = {}
            for jobs in together:
                try:
                    self.programs.append(Program(jobs, loaded, self.write_page))
                except Invalid as error:
                    alone += [(job, str(error)) for job in jobs]
                except (Exception, SystemExit) as error:  # each job will say it
                    alone += [(job, f"{type(error).__name__} as they began") for job in jobs]
            self.train()
        if alone:
            reasons = Counter(why for _, why in alone)
            said = "; ".join(f"{number} ({why})" for why, number in reasons.items())
            print(f"run one by one: {said}", flush=True)
            for job, _ in alone:
                self.codes[job.number] = self.by_itself(job)
        if self.jobs:
            told = f"{sum(len(p.jobs) for p in self.programs)} jobs as lanes of {len(self.programs)} programs"
            print(f"{told}, {len(alone)} one by one, {time.monotonic() - began:.0f} s", flush=True)

    def pretrain(self) -> None:
        """Give the jobs the weights that they begin with, as each would find them alone; a seed's are the same."""
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
                self.codes[job.number] = refused(job.folder, job.overrides, error)
            else:
                c.init_from = found[key]
        self.jobs = [job for job in self.jobs if job.number not in self.codes]

    def train(self) -> None:
        """All programs, cut into chunks, in as many processes as there are cores; beside a CUDA device in this one."""
        if not self.programs:
            return
        from gradlab.sweep.vectorized.machine import can_fork, keep_memory

        wanted = self.settings.get("workers")
        number = 0 if not can_fork() else len(os.sched_getaffinity(0)) if wanted is None else wanted
        memory = self.settings.get("memory")
        chunks = [
            Chunk(i, numbers)
            for i, program in enumerate(self.programs)
            for numbers in program.chunks(max(number, 1), self.settings.get("lanes"), memory)
        ]
        chunks.sort(key=lambda chunk: -self.programs[chunk.program].cost * len(chunk.numbers))
        jobs = [job for program in self.programs for job in program.jobs]
        progress = SweepProgress(len(jobs), sum(p.updates * len(p.jobs) for p in self.programs))
        keep_memory()

        def ended(chunk: Chunk, place: int, code: int) -> None:
            job = self.programs[chunk.program].jobs[place]
            self.codes[job.number] = code
            progress.ended(self.programs[chunk.program].updates)

        def lost(chunk: Chunk, places: list[int], why: str) -> None:
            for place in places:
                job = self.programs[chunk.program].jobs[place]
                self.codes[job.number] = 1
                ending.write_error(job.folder, why, 1, None, identity(job.overrides))
            print(f"gradlab: {len(places)} jobs were lost: {why}", file=sys.stderr, flush=True)

        if not number:
            for chunk in chunks:
                self.in_turn(chunk, ended, progress.made, lost)
            progress.finish()
            return
        workers = Workers(self.work, min(number, len(chunks)))
        try:
            workers.run(chunks, ended, progress.made, lost)
        finally:
            workers.end()
            progress.finish()

    def in_turn(self, chunk: Chunk, ended: Any, beat: Any, lost: Any) -> None:
        """Train a chunk in this process; what goes wrong costs the others nothing."""
        left = list(chunk.numbers)

        def told(place: int, code: int) -> None:
            left.remove(place)
            ended(chunk, place, code)

        try:
            self.work(chunk, told, beat)
        except Exception:
            lost(chunk, left, traceback.format_exc())

    def work(self, chunk: Chunk, ended: Any, beat: Any) -> None:
        """Train a chunk, in whatever process this is."""
        program = self.programs[chunk.program]
        for place in chunk.numbers:
            job = program.jobs[place]
            composed = self.launcher.hydra_context.config_loader.compose(self.launcher.config, job.overrides)
            composed.settle(job.number)
            composed.write(job.folder, treated(composed.task, job.overrides).composed if job.remedy else None)
        program.run(chunk.numbers, ended, beat)

    def by_itself(self, job: Planned) -> int:
        """As Hydra's own launcher runs a job."""
        context = self.launcher.hydra_context
        cfg = context.config_loader.loader.load_sweep_config(self.launcher.config, job.overrides)
        with open_dict(cfg):
            cfg.hydra.job.id = cfg.hydra.job.num = job.number
        made = run_job(
            hydra_context=context,
            task_function=self.launcher.task_function,
            config=cfg,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )
        return int(made.return_value)
