"""Groups of jobs as programs: how many lanes at once, in which process, and what is left to run one by one."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import io
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from gradlab import checkpoint, setup, verdict
from gradlab.distributed import World
from gradlab.errors import exit_code, explain
from gradlab.job import Job
from gradlab.option import Invalid
from gradlab.sweep import sharing
from gradlab.sweep.alike import NEAR, drawn, dtypes, near, plain_state, same_in_double
from gradlab.sweep.grouping import Planned
from gradlab.sweep.lanes import Lane, Stack
from gradlab.sweep.unfinished import identity
from gradlab.sweep.update import Batch

KEPT = 128 * 2**20
"""Bytes that lanes may keep for their backward passes together on a CPU: more share the cost of calls, until that is
nothing beside the arithmetic."""
LEAST, MOST = 64, 1024
"""Lanes of a chunk, at least where there are so many jobs, and at most."""


def keep_memory() -> None:
    """Let the allocator keep what it was given. glibc hands large tensors back to the system and faults them in again,
    which costs a stack of lanes up to half of its time. Elsewhere this does nothing."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        for option, value in ((-4, 0), (-1, 2**31 - 1), (-2, 2**26)):  # M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD
            libc.mallopt(option, value)


def can_fork() -> bool:
    """Whether a forked process can train: threads of autograd, one for each CUDA device, do not come with it."""
    return not torch.cuda.is_available()


def spare_compiler() -> None:
    """Do not import the compiler, which takes seconds: optimizers load it to be left alone by it."""
    for name in ("add_param_group", "state_dict", "load_state_dict", "zero_grad"):
        inner: Any = getattr(getattr(torch.optim.Optimizer, name), "__wrapped__", None)
        if inner is not None:
            inner.__dynamo_disable = inner  # what torch._compile asks for before it imports anything


class Program:
    """Jobs that are one program: what they share is made once."""

    def __init__(self, jobs: Sequence[Planned], loaded: dict[str, Any] | None = None) -> None:
        """loaded: data of other programs, and the place for this one's. Raises `Invalid` for jobs that are no lanes."""
        self.jobs, loaded = list(jobs), {} if loaded is None else loaded
        first = self.jobs[0].config
        self.device = setup.pick_device(first, World())
        name = repr((first.data, first.loss, self.device))
        if name not in loaded:
            loaded[name] = self.load(first)
        self.data = loaded[name]
        self.updates = setup.planned_updates(first, len(self.data[0].train), 1)
        """Updates of each job if none is skipped."""
        spare_compiler()
        with setup.threads(1):
            self.used, self.kept, self.state = self.probe()
        self.width = max(1, KEPT // self.kept if self.device.type == "cpu" else MOST)
        """Lanes that go through the model together."""
        self.cost = self.updates * self.kept
        """Of a job, to weigh programs against each other."""

    def load(self, first: Any) -> Any:
        """The data and the loss of all jobs. Raises `Invalid` for data that each seed would make another."""
        checkpoint.seed_all(first.seed)
        before = drawn()
        data = setup.load_data(first, self.device)
        if drawn() != before:
            raise Invalid("data", data[0].name, "draws from the generators that a job's seed decides")
        return data

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

        workers: processes among which to share them. lanes: of one chunk at most; None: some chunks for each process,
        so that all are busy to the end and a sweep that is killed loses little. memory: GiB of all processes; None:
        half of what is free.
        """
        budget = int((memory * 2**30 if memory else free_memory(self.device) / 2) / workers)
        self.width = max(1, min(self.width, budget // (2 * self.kept)))
        fits = (budget - self.width * self.kept) // self.state
        jobs = len(self.jobs)
        wanted = lanes or max(LEAST, -(-jobs // (4 * workers)))
        size = max(1, min(wanted, fits, -(-jobs // workers), MOST))
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

    def probe(self) -> tuple[list[str], int, int]:
        """Names of the parameters that get a gradient; bytes that a lane keeps for its backward pass, and of its state.

        Raises `Invalid` unless a lane's gradient is that of the job alone.
        """
        with silence():
            jobs = [self.job(planned) for planned in self.jobs[:2]]
        lanes: list[Any] = [job.trainer for job in jobs]
        first, alone, module = lanes[0], lanes[0].update, lanes[0].module
        refuse = functools.partial(Invalid, "model", type(module).__name__)
        if odd := [p.dtype for p in module.parameters() if p.dtype != torch.float32]:
            raise refuse(f"has parameters of {odd[0]}, and lanes are of torch.float32")
        before = {n: b.clone() for n, b in module.named_buffers()}
        generators, plain = drawn(), plain_state(module)
        batches, _ = first.batches(0, 0, 1)
        x, y = batches[0].inputs, batches[0].targets
        weight = 1.0 / alone.loss.divisor(alone.loss.count(y).clamp(min=1))
        with alone.precision.arithmetic():
            with alone.precision.autocast(), dtypes(module) as kinds:
                loss = alone.loss.sum(module(x), y)
            (loss * weight).backward()
        if drawn() != generators:
            raise refuse("draws random numbers in its forward pass, or its data does")
        if changed := [k for k, v in plain_state(module).items() if v != plain.get(k)]:
            raise refuse(f"counts or remembers in {'.'.join(filter(None, changed[0]))}, which lanes would share")
        after = {n: b.clone() for n, b in module.named_buffers()}
        for name, buffer in module.named_buffers():
            buffer.copy_(before[name])
        grads = {n: p.grad for n, p in zip(alone.names, alone.params, strict=True) if p.grad is not None}
        alone.zero_grad()
        stack = Stack(jobs, lambda job, code: None, lambda job, error: 1, list(grads))
        update = stack.update
        kept = Kept()
        try:
            with update.precision.arithmetic(), kept.counting():
                part = update.weights.matrix.clone().requires_grad_()
                with update.precision.autocast(), dtypes(module) as lane_kinds:
                    losses = update.sums(Batch(x, y, False), part, slice(None))
                (grad,) = torch.autograd.grad((losses * weight).sum(), part)
        except Exception as error:
            raise refuse(f"cannot be trained under vmap: {' '.join(str(error).split())[:200]}") from None
        for (name, kind), (_, wanted) in zip(lane_kinds, kinds):
            if kind != wanted:
                raise refuse(f"gives {kind} under vmap in {name or 'its outputs'}, and {wanted} alone")
        for name, old in before.items():
            if torch.equal(after[name], old) != torch.equal(update.buffers[name][0], old):
                raise refuse(f"replaces its buffer {name}, which has no effect under vmap")
        try:
            stack.measured(torch.zeros(1, dtype=torch.long, device=self.device), first, batches=1)
        except Exception as error:
            raise refuse(f"cannot be evaluated under vmap: {' '.join(str(error).split())[:200]}") from None
        slopes = [rows[0] for rows in update.weights.cut(grad)]
        trusted = near(slopes, [grads[name] for name in update.names], NEAR)
        if not trusted and not same_in_double(module, alone.loss, x, y, update.names):
            raise refuse("has another gradient under vmap than alone")
        state = 4 * update.weights.matrix[0].numel() * (5 + len(update.moments))
        return list(grads), max(1, kept.bytes // update.lanes), state

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
                except (Exception, SystemExit) as error:  # a user's module may call sys.exit
                    ended(place, failed(self.jobs[place], error))
                    continue
                begun[id(job)] = place
                jobs.append(job)
            if jobs:

                def lost(job: Job, error: Exception) -> int:
                    return failed(self.jobs[begun[id(job)]], error)

                told: Any = lambda job, code: ended(begun[id(job)], code)  # noqa: E731
                Stack(jobs, told, lost, self.used, beat, self.width).run()
        del jobs
        gc.collect()  # a lane, its job and its stack know each other: unasked, they would stay for many chunks


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


def dealt(units: list[list[int]], size: int) -> list[list[int]]:
    """Parts of at most `size`, each with units from all over: in a grid, some of which end early."""
    parts: list[list[int]] = [[] for _ in range(-(-sum(map(len, units)) // size))]
    for unit in units:
        min(parts, key=len).extend(unit)
    return [part[i : i + size] for part in parts for i in range(0, len(part), size)]


def free_memory(device: torch.device) -> int:
    """Bytes."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
    with contextlib.suppress(OSError, ValueError):  # a container's limit; "max" where there is none
        limit, used = (int(Path("/sys/fs/cgroup", f"memory.{name}").read_text()) for name in ("max", "current"))
        free = min(free, limit - used)
    return max(free, 0)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """What jobs say would be said by hundreds at once; it stands in their folders."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def failed(planned: Planned, error: BaseException) -> int:
    """Say why a job could not run, and leave word of it; returns its exit code."""
    message = explain(error, planned.folder)
    shown = f"gradlab: {message}" if message else "".join(traceback.format_exception(error))
    print(f"job {planned.number}: {shown}", file=sys.stderr, flush=True)
    message = message or repr(error)
    verdict.write_error(planned.folder, message, code := exit_code(error), None, identity(planned.overrides))
    return code
