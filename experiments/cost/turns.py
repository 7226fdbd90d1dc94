"""Contenders that train the same model on the same batches in turn, each in a process of its own.

They run in turn, never two at once, so that a busy machine slows all of them; every round of turns gives one ratio of
CPU seconds, which other programs disturb less than those of a clock. Fails if the weights are not equal after equally
many updates.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"  # two threads on a busy machine wait for each other: 20 ms become 1000

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradlab.config.compose import compose
from gradlab.config.schema import to_config
from gradlab.data.order import epoch_order
from gradlab.diagnosis.diagnose import MetricStream
from gradlab.train.sink import FileSink, FunctionSink
from gradlab.train.trainer import Trainer

WARMUP = 3  # rounds of a team that do not count
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
QUIET = ["logger=none", "trainer.progress=none", "trainer.epochs=1"]

Batch = tuple[Tensor, Tensor]
Loop = Callable[[nn.Module, Iterator[Batch]], None]


@dataclass
class Case:
    """What is trained, how many updates a turn has, and for how many seconds."""

    overrides: list[str]
    turn: int
    seconds: float
    teams: int = 4
    """Sets of processes: where a process's memory lies makes it a few percent faster or slower, for all its life."""
    least: int = 2
    """Rounds that a team does in any case."""
    batches: Callable[[], Iterator[Batch]] | None = None
    """What loops read; None: what gradlab reads."""
    device: str = "cpu"
    near: float = 1e-4
    """How far weights may be apart."""


@dataclass
class Contender:
    """A loop over batches, or the configuration of gradlab's own; and what it is compared with."""

    loop: Loop | list[str]
    reference: str
    exact: bool = True
    """Whether its weights must equal the reference's at the end too."""


class Turn(NamedTuple):
    """Seconds an update."""

    cpu: float
    clock: float
    rules: float
    """CPU seconds of the diagnosis, where there is one; among `cpu`."""


Team = dict[str, list[Turn]]
"""What one set of processes took, by contender and round."""


def images(samples: int) -> Batch:
    """Noise of CIFAR-10's shape, for `data.target`."""
    draw = torch.Generator().manual_seed(0)
    return torch.randn(samples, 3, 32, 32, generator=draw), torch.arange(samples) % 10


NOISE = ["data=custom", f"data.target={Path(__file__).stem}:images", "+data.kwargs.samples=4800"]
TRANSFORMER = ["model=transformer", "data=text", "data.batch_size=16"]
RESNET18 = ["model=resnet", *NOISE, "data.batch_size=8"]


def adamw(model: nn.Module, groups: list[dict[str, Any]] | None = None) -> torch.optim.Optimizer:
    """What `optimizer=adamw` builds."""
    return torch.optim.AdamW(groups or model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)


def mean_loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())


def bare(
    model: nn.Module,
    batches: Iterator[Batch],
    max_norm: float | None = None,
    groups: list[dict[str, Any]] | None = None,
    after: Callable[[nn.Module], Any] | None = None,
) -> None:
    """The loop that everyone writes by hand. after: what follows every update."""
    optimizer = adamw(model, groups)
    for inputs, targets in batches:
        optimizer.zero_grad(set_to_none=True)
        mean_loss(model, inputs, targets).backward()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        if after is not None:
            after(model)


@dataclass
class Sized:
    """Lightning fetches a batch ahead where it does not know how many there are."""

    batches: Iterator[Batch]
    length: int = 1_000_000

    def __iter__(self) -> Iterator[Batch]:
        return self.batches

    def __len__(self) -> int:
        return self.length


class Done(Exception):
    """The measuring is over."""


class Rules:
    """A sink that diagnoses as a job does, and knows how long that took."""

    def __init__(self, trainer: Trainer) -> None:
        self.stream = MetricStream(trainer.config.diagnosis, trainer.update.names, trainer.observed.order)
        self.seconds = 0.0

    def __call__(self, metrics: dict[str, Any], layers: Any) -> None:
        began = time.process_time()
        self.stream.observe(metrics, layers)
        self.seconds += time.process_time() - began


def take_turns(
    model: nn.Module, batches: Iterator[Any], turn: int, pipe: Connection, rules: Rules | None = None
) -> Iterator[Any]:
    """The batches, held back between turns. A loop asks for the next when it is done with the last: that times it."""

    def now() -> Turn:
        if next(model.parameters()).is_cuda:
            torch.cuda.synchronize()
        return Turn(time.process_time(), time.perf_counter(), rules.seconds if rules else 0.0)

    while (asked := pipe.recv()) != "done":
        if asked == "weights":
            pipe.send(torch.cat([p.detach().flatten() for p in model.parameters()]).cpu().numpy())
            continue
        began = now()
        for _ in range(turn):
            yield next(batches)
        pipe.send(Turn(*((b - a) / turn for a, b in zip(began, now(), strict=True))))


def keep_memory() -> None:
    """Let glibc keep what is freed. Else an update faults thousands of pages in again or none, as the layout has it."""
    with suppress(AttributeError, OSError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(M_MMAP_THRESHOLD, 2**31 - 1)


def contend(case: Case, loop: Loop | list[str], pipe: Connection) -> None:
    """The process of a contender."""
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # else it has no workers
    keep_memory()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        overrides = [
            *case.overrides,
            *QUIET,
            f"trainer.device={case.device}",
            *(loop if isinstance(loop, list) else ()),
        ]
        trainer = Trainer(to_config(compose(overrides)), Path(folder), say=lambda text: None)
        model, train, config = trainer.module, trainer.data.train, trainer.config
        if callable(loop):
            torch.set_deterministic_debug_mode("default")  # PyTorch's; gradlab keeps its own
            order = epoch_order(len(train), config.seed, 0).to(case.device).split(config.data.batch_size)
            batches = case.batches() if case.batches else map(train.batch, order)
            loop(model, take_turns(model, batches, case.turn, pipe))
            return
        rules = Rules(trainer)
        turns = take_turns(model, repeat(None), case.turn, pipe, rules)

        def after_update(metrics: dict[str, Any], layers: Any) -> None:
            if next(turns, Done) is Done:
                raise Done

        with suppress(Done):
            next(turns)
            trainer.sinks = (FileSink(), FunctionSink(rules), FunctionSink(after_update))
            trainer.run()


def ask(pipe: Connection, what: str) -> Any:
    pipe.send(what)
    return pipe.recv()


def check_equal(contenders: dict[str, Contender], pipes: dict[str, Connection], near: float, *, end: bool) -> None:
    """Fail unless the contenders have done the same work."""
    weights = {name: torch.from_numpy(ask(pipe, "weights")) for name, pipe in pipes.items()}
    for name, contender in contenders.items():
        a, b = weights[name], weights[contender.reference]
        if (contender.exact or not end) and not torch.allclose(a, b, rtol=1e-3, atol=near):
            raise AssertionError(f"{name} has not done the same work: weights differ by {(a - b).abs().max():.2g}")


def in_turn(case: Case, contenders: dict[str, Contender], pipes: dict[str, Connection]) -> Team:
    """Rounds until the time is up."""
    names = list(pipes)
    team: Team = {name: [] for name in names}
    end, rounds = 0.0, 0
    while time.perf_counter() < end or rounds < WARMUP + case.least:
        shift = rounds % len(names)  # who begins changes, and so does who follows whom
        for name in (names[shift:] + names[:shift])[:: -1 if rounds % 2 else 1]:
            team[name].append(ask(pipes[name], "turn"))
        rounds += 1
        if rounds == 1:
            check_equal(contenders, pipes, case.near, end=False)
        if rounds == WARMUP:
            end = time.perf_counter() + case.seconds / case.teams
    check_equal(contenders, pipes, case.near, end=True)
    return {name: turns[WARMUP:] for name, turns in team.items()}


def measure(case: Case, contenders: dict[str, Contender]) -> list[Team]:
    """`in_turn` of one set of processes after the other."""
    return [play(case, contenders) for _ in range(case.teams)]


def play(case: Case, contenders: dict[str, Contender]) -> Team:
    processes, pipes = [], {}
    fork = multiprocessing.get_context("fork")  # has imported everything already
    for name, contender in contenders.items():
        pipes[name], theirs = fork.Pipe()
        processes.append(fork.Process(target=contend, args=(case, contender.loop, theirs), daemon=True))
        processes[-1].start()
        theirs.close()  # so that the end of the process is an EOFError here
    team = in_turn(case, contenders, pipes)
    for pipe, process in zip(pipes.values(), processes, strict=True):
        pipe.send("done")
        process.join()
    return team
