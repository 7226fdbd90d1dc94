"""Groups of jobs as programs: how many lanes at once, in which process, and what is left to run one by one."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gradlab import setup, verdict
from gradlab.distributed import World
from gradlab.errors import exit_code, explain
from gradlab.job import Job
from gradlab.option import Invalid
from gradlab.sweep.lanes import Lane, Stack
from gradlab.sweep.update import Batch

ALIKE = 1e-2
"""Largest distance of a lane's first gradient from that of the same job alone, in units of its norm."""


@dataclass
class Planned:
    """A job that is to run: its place in the sweep, and its configuration in full."""

    number: int
    overrides: list[str]
    folder: Path
    config: Any
    plain: dict[str, Any]
    group: str
    remedy: dict[str, Any] | None = None


Told = Callable[[Planned, int], None]
"""Is told of each job's end and its exit code."""


def keep_memory() -> None:
    """Let the allocator keep what it was given. glibc hands large tensors back to the system and faults them in again,
    which costs a stack of lanes up to half of its time. Elsewhere this does nothing."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        for option, value in ((-4, 0), (-1, 2**31 - 1), (-2, 2**26)):  # M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD
            libc.mallopt(option, value)


class Program:
    """Jobs that are one program: what they share is made once."""

    def __init__(self, jobs: Sequence[Planned]) -> None:
        self.jobs = list(jobs)
        first = self.jobs[0].config
        self.device = setup.pick_device(first, World())
        self.data = setup.load_data(first, self.device)

    def job(self, planned: Planned) -> Job:
        """A job whose trainer is a lane. What it has to say stands in its folder."""
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
        )

    def probe(self) -> list[str]:
        """Names of the parameters that get a gradient. Raises `Invalid` unless a lane's is that of the job alone."""
        with silence():
            jobs = [self.job(planned) for planned in self.jobs[:2]]
        lanes: list[Any] = [job.trainer for job in jobs]
        first = lanes[0]
        batches, _ = first.batches(0, 0, 1)
        x, y = batches[0].inputs, batches[0].targets
        alone = first.update
        before = [b.clone() for b in first.module.buffers()]
        random = first.random
        weight = 1.0 / alone.loss.divisor(alone.loss.count(y).clamp(min=1))
        with alone.precision.arithmetic():
            with alone.precision.autocast():
                loss = alone.loss.sum(first.module(x), y)
            (loss * weight).backward()
        for b, old in zip(first.module.buffers(), before, strict=True):
            b.copy_(old)
        if not torch.equal(torch.get_rng_state(), random["cpu"]):
            raise Invalid("model", type(first.module).__name__, "draws random numbers in its forward pass")
        grads = {n: p.grad for n, p in zip(alone.names, alone.params, strict=True) if p.grad is not None}
        alone.zero_grad()
        stack = Stack(jobs, lambda job, code: None, list(grads))
        update = stack.update
        with update.precision.arithmetic():
            with update.precision.autocast():
                losses = update.sums(Batch(x, y, False))
            (losses * weight).sum().backward()
        distance = norm = 0.0
        for name, rows in zip(update.names, update.weights.cut(update.slopes), strict=True):
            wanted = grads[name].double()
            distance += (rows[0].double() - wanted).square().sum().item()
            norm += wanted.square().sum().item()
        if norm < float("inf") and not distance <= ALIKE**2 * norm:
            raise Invalid("model", type(first.module).__name__, "has another gradient under vmap than alone")
        return list(grads)

    def run(self, numbers: Sequence[int], used: Sequence[str], told: Told) -> None:
        """Train these of the jobs together. A job that cannot begin fails, and not the others."""
        begun: dict[int, Planned] = {}
        jobs = []
        with silence():
            for i in numbers:
                planned = self.jobs[i]
                try:
                    job = self.job(planned)
                except Exception as error:
                    told(planned, failed(planned, error))
                    continue
                begun[id(job)] = planned
                jobs.append(job)
            if jobs:
                Stack(jobs, lambda job, code: told(begun[id(job)], code), used).run()


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """What jobs say would be said by hundreds at once; it stands in their folders."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def failed(planned: Planned, error: Exception) -> int:
    """Leave word of a job that could not run; returns its exit code."""
    message = explain(error, planned.folder) or "".join(traceback.format_exception(error))
    verdict.write_error(planned.folder, message, code := exit_code(error))
    return code
