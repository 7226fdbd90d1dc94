"""What an update costs beside a bare PyTorch loop: gradlab, Lightning and Accelerate.

    python experiments/cost/update.py

All train the same model on the same batches, in turn in one process, so that a busy machine slows all of them; each
round of blocks of updates gives one ratio. Prints the median and the quartiles, for people and as one JSON line a ratio,
after checking that all weights ended equal. Three to four minutes, on one thread. Needs `lightning` and `accelerate`.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from gradlab.data import Splits, epoch_order
from gradlab.trainer import Trainer, deterministic

SECONDS, WARMUP = 95.0, 2  # measured time of a case; rounds before, which do not count
TARGET = 1.02
MAX_NORM = 1.0

Batch = tuple[Tensor, Tensor]
Block = Callable[[int], None]


@dataclass
class Case:
    """What is trained, how many updates make a block, and how many the data of one epoch is enough for."""

    overrides: list[str]
    block: int
    updates: int


def images(samples: int) -> Batch:
    """Noise of the shape of CIFAR-10, for `data.target`."""
    draw = torch.Generator().manual_seed(0)
    return torch.randn(samples, 3, 32, 32, generator=draw), torch.arange(samples) % 10


CASES = {
    "transformer": Case(["model=transformer", "data=text", "data.batch_size=16"], 5, 1700),
    "resnet18": Case(
        ["model=resnet", "data=custom", "data.batch_size=8", f"data.target={Path(__file__).stem}:images"]
        + ["+data.kwargs.samples=6400"],
        1,
        800,
    ),
}


def build_trainer(case: Case, folder: Path, *overrides: str) -> Trainer:
    quiet = ["monitor=none", "logger=none", "trainer.progress=none", "trainer.device=cpu", "trainer.epochs=1"]
    return Trainer(to_config(compose([*case.overrides, *quiet, *overrides])), folder, say=lambda text: None)


def adamw(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    """What `optimizer=adamw` builds."""
    return torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, fused=True)


def mean_loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())


def bare(model: nn.Module, batches: Iterator[Batch], max_norm: float | None) -> Block:
    """The loop that everyone writes by hand."""
    optimizer = adamw(model.parameters())

    def block(updates: int) -> None:
        for _ in range(updates):
            inputs, targets = next(batches)
            optimizer.zero_grad(set_to_none=True)
            mean_loss(model, inputs, targets).backward()
            if max_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()

    return block


def accelerate(model: nn.Module, batches: Iterator[Batch]) -> Block:
    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(model, adamw(model.parameters()))

    def block(updates: int) -> None:
        for _ in range(updates):
            inputs, targets = next(batches)
            optimizer.zero_grad()
            accelerator.backward(mean_loss(model, inputs, targets))
            optimizer.step()

    return block


def gradlab(trainer: Trainer) -> Block:
    """gradlab's own update with all that surrounds it: measuring the norm, the line in metrics.jsonl, the checks."""
    trainer.open_files()
    trainer.model.train()
    trainer.tick = time.perf_counter()

    def block(updates: int) -> None:
        deterministic(trainer.config.trainer.deterministic)
        for _ in range(updates):
            trainer.one_update()
        deterministic(False)  # PyTorch's default, in which the others run

    return block


class Module(lightning.LightningModule):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: Batch, index: int) -> Tensor:
        return mean_loss(self.model, *batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return adamw(self.model.parameters())


class Rounds:
    """What Lightning takes for its data: on Lightning's turn a block of batches, in between the blocks of the others.

    Lightning asks for the next batch when it is done with the last, so its time is that between two requests.
    """

    def __init__(self, case: Case, blocks: dict[str, Block], batches: Iterator[Batch]) -> None:
        self.case, self.blocks, self.batches = case, blocks, batches
        self.names = [*blocks, "lightning"]
        self.seconds: dict[str, list[float]] = {name: [] for name in self.names}
        self.rounds = 0

    def __len__(self) -> int:
        return self.case.updates

    def __iter__(self) -> Iterator[Batch]:
        end = time.perf_counter() + SECONDS
        while time.perf_counter() < end and (self.rounds + 1) * self.case.block <= self.case.updates:
            shift = self.rounds % len(self.names)
            for name in self.names[shift:] + self.names[:shift]:
                start = time.perf_counter()
                if name == "lightning":
                    for _ in range(self.case.block):
                        yield next(self.batches)
                else:
                    self.blocks[name](self.case.block)
                self.seconds[name].append(time.perf_counter() - start)
            self.rounds += 1

    def ratios(self, name: str, reference: str) -> list[float]:
        pairs = zip(self.seconds[name][WARMUP:], self.seconds[reference][WARMUP:], strict=True)
        return [a / b for a, b in pairs]


def endless(data: Splits, batch_size: int, seed: int) -> Iterator[Batch]:
    """The batches of gradlab's first epoch, in its order."""
    for index in epoch_order(len(data.train), seed, 0).split(batch_size):
        yield data.train.batch(index)


def difference(model: nn.Module, reference: nn.Module) -> float:
    """Largest difference of two weights; raises if the models are not equal."""
    pairs = list(zip(model.parameters(), reference.parameters(), strict=True))
    largest = max((a - b).abs().max().item() for a, b in pairs)
    if not all(torch.allclose(a, b, rtol=1e-3, atol=1e-3) for a, b in pairs):
        raise AssertionError(f"not the same work: weights differ by {largest}")
    return largest


def run(case: Case, folder: Path) -> tuple[Rounds, dict[str, float]]:
    """Measure a case; and the largest difference of a weight from that of the bare loop, by name."""
    plain = build_trainer(case, folder / "plain")
    clipping = build_trainer(case, folder / "clipping", "clip=norm", f"clip.max_norm={MAX_NORM}")
    config, data = plain.config, plain.data
    models = {name: copy.deepcopy(plain.module) for name in ("bare", "bare, clip", "accelerate", "lightning")}
    models |= {"gradlab": plain.module, "gradlab, clip": clipping.module}
    batches = {name: endless(data, config.data.batch_size, config.seed) for name in models}
    blocks = {
        "bare": bare(models["bare"], batches["bare"], None),
        "gradlab": gradlab(plain),
        "bare, clip": bare(models["bare, clip"], batches["bare, clip"], MAX_NORM),
        "gradlab, clip": gradlab(clipping),
        "accelerate": accelerate(models["accelerate"], batches["accelerate"]),
    }
    rounds = Rounds(case, blocks, batches["lightning"])
    fit = lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    fit.fit(Module(models["lightning"]), rounds)
    for trainer in (plain, clipping):
        trainer.close_files()
    against = {"gradlab": "bare", "gradlab, clip": "bare, clip", "lightning": "bare", "accelerate": "bare"}
    return rounds, {name: difference(models[name], models[bare]) for name, bare in against.items()}


def report(name: str, rounds: Rounds, differences: dict[str, float]) -> list[dict[str, Any]]:
    """Print what was measured; the JSON lines of the ratios."""
    block = rounds.case.block
    times = {n: 1e3 * statistics.median(s[WARMUP:]) / block for n, s in rounds.seconds.items()}
    print(f"{name}: {rounds.rounds} rounds of {block} updates; ms an update:")
    results = []
    for contender, reference, label, target in (
        ("gradlab", "bare", "gradlab/bare {} fp32", TARGET),
        ("gradlab, clip", "bare, clip", "gradlab/bare {} fp32, clipped", TARGET),
        ("lightning", "bare", "lightning/bare {} fp32", None),
        ("accelerate", "bare", "accelerate/bare {} fp32", None),
    ):
        ratios = rounds.ratios(contender, reference)
        low, ratio, high = statistics.quantiles(ratios, n=4, method="inclusive")
        print(f"  {contender} {times[contender]:.2f}, {reference} {times[reference]:.2f}", end=": ")
        print(f"{ratio:.3f} ({low:.3f} to {high:.3f}); weights differ by {differences[contender]:.1g}", flush=True)
        rounded = {key: round(value, 4) for key, value in (("ratio", ratio), ("low", low), ("high", high))}
        results.append({"name": label.format(name), **rounded, "target": target})
    return results


def main() -> None:
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    results = []
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            results += report(name, *run(case, Path(folder)))
    for result in results:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
