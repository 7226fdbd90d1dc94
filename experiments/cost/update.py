"""What an update costs beside a bare PyTorch loop: gradlab, Lightning and Accelerate.

    python experiments/cost/update.py

Each trains the same model on the same batches in a process of its own. They run in turn, never two at once, so that a
busy machine slows all of them; every round of turns gives one ratio of CPU seconds, which other programs disturb less
than those of a clock. Prints medians and quartiles, for people and as one JSON line a ratio, and fails if the weights
are not equal after equally many updates. Four minutes, on one thread. Needs `lightning` and `accelerate`.
"""

from __future__ import annotations

import ctypes
import json
import logging
import math
import multiprocessing
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # two threads on a busy machine wait for each other: 20 ms become 1000

import torch
from accelerate import Accelerator
from lightning import pytorch as lightning
from torch import Tensor, nn
from torch.nn import functional as F

from gradlab.cli import compose
from gradlab.config import to_config
from gradlab.data import epoch_order
from gradlab.trainer import Trainer

WARMUP = 3  # rounds of a team that do not count
TEAMS = 4  # sets of processes: where a process's memory lies makes it a few percent faster or slower, for all its life
MAX_NORM = 1.0
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
QUIET = ["monitor=none", "logger=none", "trainer.progress=none", "trainer.device=cpu", "trainer.epochs=1"]

Batch = tuple[Tensor, Tensor]


@dataclass
class Case:
    """What is trained, how many updates a turn has, and for how many seconds."""

    overrides: list[str]
    turn: int
    seconds: float
    target: float | None = 1.02
    clip: bool = True


def images(samples: int) -> Batch:
    """Noise of CIFAR-10's shape, for `data.target`."""
    draw = torch.Generator().manual_seed(0)
    return torch.randn(samples, 3, 32, 32, generator=draw), torch.arange(samples) % 10


NOISE = ["data=custom", f"data.target={Path(__file__).stem}:images", "+data.kwargs.samples=4800"]
CASES = {
    "transformer": Case(["model=transformer", "data=text", "data.batch_size=16"], 2, 55.0),
    "resnet18": Case(["model=resnet", *NOISE, "data.batch_size=8"], 1, 75.0, clip=False),
    # Hardly any arithmetic: shows the fixed cost.
    "transformer of 1 x 8 bytes": Case(
        ["model=transformer", "data=text", "data.batch_size=1", "data.length=8"], 5, 6.0, target=None
    ),
}


def build_trainer(case: Case, folder: Path, *overrides: str) -> Trainer:
    return Trainer(to_config(compose([*case.overrides, *QUIET, *overrides])), folder, say=lambda text: None)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """What `optimizer=adamw` builds."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)


def mean_loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())


def bare(model: nn.Module, batches: Iterator[Batch], max_norm: float | None = None) -> None:
    """The loop that everyone writes by hand."""
    optimizer = adamw(model)
    for inputs, targets in batches:
        optimizer.zero_grad(set_to_none=True)
        mean_loss(model, inputs, targets).backward()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()


def bare_clip(model: nn.Module, batches: Iterator[Batch]) -> None:
    bare(model, batches, MAX_NORM)


def accelerate(model: nn.Module, batches: Iterator[Batch]) -> None:
    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(model, adamw(model))
    for inputs, targets in batches:
        optimizer.zero_grad()
        accelerator.backward(mean_loss(model, inputs, targets))
        optimizer.step()


class Module(lightning.LightningModule):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: Batch, index: int) -> Tensor:
        return mean_loss(self.model, *batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return adamw(self.model)


@dataclass
class Sized:
    """Lightning fetches a batch ahead where it does not know how many there are."""

    batches: Iterator[Batch]
    length: int

    def __iter__(self) -> Iterator[Batch]:
        return self.batches

    def __len__(self) -> int:
        return self.length


def lightning_fit(model: nn.Module, batches: Iterator[Batch]) -> None:
    off = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    lightning.Trainer(accelerator="cpu", max_epochs=1, **off).fit(Module(model), Sized(batches, 1_000_000))


CONTENDERS: dict[str, tuple[Callable[[nn.Module, Iterator[Batch]], None] | list[str], str]] = {
    "bare": (bare, "bare"),
    "gradlab": ([], "bare"),
    "bare, clip": (bare_clip, "bare, clip"),
    "gradlab, clip": (["clip=norm", f"clip.max_norm={MAX_NORM}"], "bare, clip"),
    "lightning": (lightning_fit, "bare"),
    "accelerate": (accelerate, "bare"),
}
"""A loop over batches, or the configuration of gradlab's own; and what it is compared with."""


class Done(Exception):
    """The measuring is over."""


def take_turns(model: nn.Module, batches: Iterator[Any], turn: int, pipe: Connection) -> Iterator[Any]:
    """The batches, held back between turns. A loop asks for the next when it is done with the last: that times it."""
    while (asked := pipe.recv()) != "done":
        if asked == "weights":
            pipe.send(torch.cat([p.detach().flatten() for p in model.parameters()]).numpy())
            continue
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(turn):
            yield next(batches)
        pipe.send(((time.process_time() - cpu) / turn, (time.perf_counter() - wall) / turn))


def keep_memory() -> None:
    """Let glibc keep what is freed. Else an update faults thousands of pages in again or none, as the layout has it."""
    with suppress(AttributeError, OSError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(M_MMAP_THRESHOLD, 2**31 - 1)


def contend(case: Case, name: str, pipe: Connection) -> None:
    """The process of a contender."""
    keep_memory()
    torch.set_num_threads(1)
    loop = CONTENDERS[name][0]
    with tempfile.TemporaryDirectory() as folder:
        trainer = build_trainer(case, Path(folder), *(loop if isinstance(loop, list) else ()))
        model, train, config = trainer.module, trainer.data.train, trainer.config
        if callable(loop):
            torch.set_deterministic_debug_mode("default")  # PyTorch's; gradlab keeps its own
            order = epoch_order(len(train), config.seed, 0).split(config.data.batch_size)
            loop(model, take_turns(model, map(train.batch, order), case.turn, pipe))
            return
        turns = take_turns(model, repeat(None), case.turn, pipe)

        def after_update(metrics: dict[str, Any], layers: Any) -> None:
            if next(turns, Done) is Done:
                raise Done

        with suppress(Done):
            next(turns)
            trainer.sinks = (after_update,)
            trainer.run()


def check_equal(pipes: dict[str, Connection], clip: bool) -> None:
    """Fail unless the contenders have done the same work."""
    weights = {name: torch.from_numpy(ask(pipe, "weights")) for name, pipe in pipes.items()}
    for name in pipes:
        a, b = weights[name], weights[CONTENDERS[name][1]]
        if (clip or "clip" not in name) and not torch.allclose(a, b, rtol=1e-3, atol=1e-4):
            raise AssertionError(f"{name} has not done the same work: weights differ by {(a - b).abs().max():.2g}")


def ask(pipe: Connection, what: str) -> Any:
    pipe.send(what)
    return pipe.recv()


def in_turn(case: Case, pipes: dict[str, Connection]) -> dict[str, list[tuple[float, float]]]:
    """CPU and clock seconds of an update, by contender and round."""
    names = list(pipes)
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    end, rounds = math.inf, 0
    while time.perf_counter() < end or rounds < WARMUP + 2:
        shift = rounds % len(names)  # who begins changes, and so does who follows whom
        for name in (names[shift:] + names[:shift])[:: -1 if rounds % 2 else 1]:
            seconds[name].append(ask(pipes[name], "turn"))
        rounds += 1
        if rounds == 1:
            check_equal(pipes, True)
        if rounds == WARMUP:
            end = time.perf_counter() + case.seconds / TEAMS
    # Not the clipped: PyTorch takes max_norm / (norm + 1e-6), and training amplifies what differs in the last digits.
    check_equal(pipes, False)
    return {name: all_[WARMUP:] for name, all_ in seconds.items()}


def measure(case: Case) -> dict[str, list[tuple[float, float]]]:
    """`in_turn` of one set of processes after the other."""
    teams = [team(case) for _ in range(TEAMS)]
    return {name: [pair for seconds in teams for pair in seconds[name]] for name in teams[0]}


def team(case: Case) -> dict[str, list[tuple[float, float]]]:
    processes, pipes = [], {}
    fork = multiprocessing.get_context("fork")  # has imported everything already
    for name in CONTENDERS:
        if case.clip or "clip" not in name:
            pipes[name], theirs = fork.Pipe()
            processes.append(fork.Process(target=contend, args=(case, name, theirs), daemon=True))
            processes[-1].start()
            theirs.close()  # so that the end of the process is an EOFError here
    seconds = in_turn(case, pipes)
    for pipe, process in zip(pipes.values(), processes, strict=True):
        pipe.send("done")
        process.join()
    return seconds


def report(label: str, case: Case, seconds: dict[str, list[tuple[float, float]]]) -> list[dict[str, Any]]:
    """Print what was measured; the JSON lines of the ratios."""
    cpu, wall = ({name: [s[i] for s in all_] for name, all_ in seconds.items()} for i in (0, 1))
    print(f"{label}: {len(cpu['bare'])} rounds of {case.turn} updates; CPU ms an update, their ratio (by the clock)")
    lines = []
    for name, reference in ((n, CONTENDERS[n][1]) for n in seconds if not n.startswith("bare")):
        ratios = [[a / b for a, b in zip(s[name], s[reference], strict=True)] for s in (cpu, wall)]
        low, ratio, high = statistics.quantiles(ratios[0], n=4, method="inclusive")
        ms, bare_ms = (1e3 * statistics.median(cpu[n]) for n in (name, reference))
        says = f"{ratio:.3f}, quartiles {low:.3f} to {high:.3f} ({statistics.median(ratios[1]):.3f})"
        print(f"  {name} {ms:.2f}, {reference} {bare_ms:.2f}: {says}", flush=True)
        framework, _, clip = name.partition(", ")
        rounded = {key: round(value, 4) for key, value in (("ratio", ratio), ("low", low), ("high", high))}
        target = case.target if framework == "gradlab" else None
        lines.append({"name": f"{framework}/bare {label} fp32" + ", clipped" * bool(clip), **rounded, "target": target})
    return lines


def main() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    lines = []
    for label, case in CASES.items():
        lines += report(label, case, measure(case))
    for line in lines:
        print(json.dumps(line))


if __name__ == "__main__":
    main()
