"""Groups of jobs as programs: how many lanes at once, in which process, and what is left to run one by one."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from gradlab import setup, verdict
from gradlab.distributed import World
from gradlab.errors import exit_code, explain
from gradlab.job import Job
from gradlab.option import Invalid
from gradlab.sweep.grouping import Planned
from gradlab.sweep.lanes import Lane, Stack
from gradlab.sweep.unfinished import identity
from gradlab.sweep.update import Batch

CACHE = 48 * 2**20
"""Bytes that the lanes of a chunk keep together on a CPU. More lanes share the cost of calls, but leave the cache."""
MOST = 1024
"""Lanes of a chunk at most."""
ALIKE = 1e-2
"""Largest distance of a lane's first gradient from that of the same job alone, in units of its norm."""


def keep_memory() -> None:
    """Let the allocator keep what it was given. glibc hands large tensors back to the system and faults them in again,
    which costs a stack of lanes up to half of its time. Elsewhere this does nothing."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        for option, value in ((-4, 0), (-1, 2**31 - 1), (-2, 2**26)):  # M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD
            libc.mallopt(option, value)


def spare_compiler() -> None:
    """Do not import the compiler, which takes seconds: optimizers load it to be left alone by it."""
    for name in ("add_param_group", "state_dict", "load_state_dict", "zero_grad"):
        inner: Any = getattr(getattr(torch.optim.Optimizer, name), "__wrapped__", None)
        if inner is not None:
            inner.__dynamo_disable = inner  # what torch._compile asks for before it imports anything


class Program:
    """Jobs that are one program: what they share is made once."""

    def __init__(self, jobs: Sequence[Planned]) -> None:
        """Raises `Invalid` where the jobs cannot be lanes."""
        self.jobs = list(jobs)
        first = self.jobs[0].config
        self.device = setup.pick_device(first, World())
        self.data = setup.load_data(first, self.device)
        self.updates = setup.planned_updates(first, len(self.data[0].train), 1)
        """Updates of each job if none is skipped."""
        spare_compiler()
        with setup.threads(1):
            self.used, self.bytes = self.probe()
        self.cost = self.updates * self.bytes
        """Of a job, to weigh programs against each other."""

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

    def chunks(self, workers: int, lanes: int | None, memory: float | None) -> list[list[int]]:
        """Places of the jobs that are trained together.

        workers: processes among which to share them. lanes: of one chunk at most; None: as many as fit the cache.
        memory: GiB of all processes; None: half of what is free.
        """
        fits = int((memory * 2**30 if memory else free_memory(self.device) / 2) / workers / self.bytes)
        wanted = lanes or (MOST if self.device.type != "cpu" else min(MOST, CACHE // self.bytes))
        size = max(1, min(wanted, fits, -(-len(self.jobs) // workers)))
        by_seed: dict[int, list[int]] = {}
        for place, job in enumerate(self.jobs):
            by_seed.setdefault(job.config.seed, []).append(place)
        made, rest = [], list[int]()
        for places in by_seed.values():  # lanes of one seed share their samples
            if 2 * len(places) < size and len(by_seed) > 1:
                rest += places
            else:
                made += strided(places, size)
        return made + strided(rest, size)

    def probe(self) -> tuple[list[str], int]:
        """Names of the parameters that get a gradient, and bytes of a lane.

        Raises `Invalid` unless a lane's gradient is that of the job alone.
        """
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
        kept = Kept()
        try:
            with update.precision.arithmetic(), kept.counting():
                with update.precision.autocast():
                    losses = update.sums(Batch(x, y, False))
                (losses * weight).sum().backward()
        except RuntimeError as error:
            said = " ".join(str(error).split())[:200]
            raise Invalid("model", type(first.module).__name__, f"cannot be trained under vmap: {said}") from None
        distance = norm = 0.0
        for name, rows in zip(update.names, update.weights.cut(update.slopes), strict=True):
            wanted = grads[name].double()
            distance += (rows[0].double() - wanted).square().sum().item()
            norm += wanted.square().sum().item()
        if norm < float("inf") and not distance <= ALIKE**2 * norm:
            raise Invalid("model", type(first.module).__name__, "has another gradient under vmap than alone")
        elements = update.weights.matrix[0].numel()
        return list(grads), kept.bytes // len(jobs) + 4 * elements * (5 + len(update.moments))

    def run(self, places: Sequence[int], ended: Callable[[int, int], None], beat: Callable[[int], None]) -> None:
        """Train these of the jobs together. A job that cannot begin fails, and not the others.

        ended: is told of each job's end, by its place, and its exit code. beat: of updates made.
        """
        begun: dict[int, int] = {}
        jobs = []
        with silence(), setup.threads(1 if self.device.type == "cpu" else None):
            for place in places:
                try:
                    job = self.job(self.jobs[place])
                except Exception as error:
                    ended(place, failed(self.jobs[place], error))
                    continue
                begun[id(job)] = place
                jobs.append(job)
            if jobs:
                Stack(jobs, lambda job, code: ended(begun[id(job)], code), self.used, beat).run()


class Kept:
    """Bytes that a forward pass keeps for its backward pass."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}

    @property
    def bytes(self) -> int:
        return sum(self.seen.values())

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        self.seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    def counting(self) -> Any:
        return torch.autograd.graph.saved_tensors_hooks(self.pack, lambda tensor: tensor)


def strided(places: list[int], size: int) -> list[list[int]]:
    """Nearly equal parts of at most `size`, each with some of every region of a grid: some of them end early."""
    parts = -(-len(places) // size)
    return [places[i::parts] for i in range(parts)]


def free_memory(device: torch.device) -> int:
    """Bytes."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """What jobs say would be said by hundreds at once; it stands in their folders."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def failed(planned: Planned, error: Exception) -> int:
    """Leave word of a job that could not run; returns its exit code."""
    message = explain(error, planned.folder) or "".join(traceback.format_exception(error))
    verdict.write_error(planned.folder, message, code := exit_code(error), None, identity(planned.overrides))
    return code
