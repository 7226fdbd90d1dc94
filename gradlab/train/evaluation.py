"""Evaluation: one pass over a split, without gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from gradlab.base.distributed import World
from gradlab.data.base import Split
from gradlab.data.stream import streamed
from gradlab.update.loss import Loss
from gradlab.update.precision import Precision


def evaluate(
    module: torch.nn.Module,
    split: Split,
    loss: Loss,
    precision: Precision,
    batch_size: int,
    world: World,
    together: bool = False,
) -> dict[str, float]:
    """Mean loss, and accuracy where there are classes, in the run's precision; each rank takes its share.

    together: whether a forward pass is one of all ranks.
    """
    module.eval()
    world.share_(list(module.buffers()))  # DDP would do so only at the next training step
    device = precision.device
    k = max(1, len(loss.terms))
    sums = torch.zeros(2 * k + 2, dtype=torch.float64, device=device)  # losses, counts, correct, count
    batches = one_pass(split, batch_size, device, world)
    with torch.no_grad(), precision.arithmetic():
        for inputs, targets, taken in in_step(batches, split, device, world) if together else all_count(batches):
            with precision.autocast():
                outputs = module(inputs)
                totals, counts = loss.term_sums(outputs, targets)
            correct = loss.correct(outputs, targets)
            if taken:
                sums += torch.cat([totals, counts, torch.stack(correct) if correct else counts.new_zeros(2)])
    module.train()
    total_sums, counted, (right, classified) = world.sum_(sums).split([k, k, 2])
    means = total_sums / torch.where(counted > 0, counted, 1.0)
    result = {"eval/loss": loss.total(means).item() if counted.any() else math.nan}
    result |= {f"eval/loss/{name}": mean for name, mean in zip(loss.terms, means.tolist())}
    return result | ({"eval/accuracy": (right / classified).item()} if classified else {})


def names(loss: Loss, outputs: Any, targets: Any) -> list[str]:
    """Names of the metrics that `evaluate` returns; outputs, targets: of any batch."""
    accuracy = ["eval/accuracy"] if loss.correct(outputs, targets) else []
    return ["eval/loss", *(f"eval/loss/{name}" for name in loss.terms), *accuracy]


def all_count(batches: Iterator[tuple[Any, Any]]) -> Iterator[tuple[Any, Any, bool]]:
    return ((inputs, targets, True) for inputs, targets in batches)


def in_step(
    batches: Iterator[tuple[Any, Any]], split: Split, device: torch.device, world: World
) -> Iterator[tuple[Any, Any, bool]]:
    """The same number of batches on every rank: one that runs out repeats its last batch, which does not count."""
    last: tuple[Any, Any] | None = None
    while True:
        found = next(batches, None)
        if not world.sum_(torch.tensor(int(found is not None))).item():
            return
        last = found or last or next(one_pass(split, 1, device, World()))
        yield *last, found is not None


def one_pass(split: Split, batch_size: int, device: torch.device, world: World) -> Iterator[tuple[Any, Any]]:
    """This rank's batches of a split."""
    if (stream := streamed(split)) is not None:
        return stream.epoch(world.rank, world.size, batch_size)
    index = torch.arange(len(split), device=device)[world.rank :: world.size]
    return (split.batch(part) for part in torch.split(index, batch_size))
