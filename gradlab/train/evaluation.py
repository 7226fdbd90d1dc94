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
    module: torch.nn.Module, split: Split, loss: Loss, precision: Precision, batch_size: int, world: World
) -> dict[str, float]:
    """Mean loss, and accuracy where there are classes, in the run's precision; each rank takes its share."""
    module.eval()
    world.share_(list(module.buffers()))  # DDP would do so only at the next training step
    device = precision.device
    sums = torch.zeros(4, dtype=torch.float64, device=device)  # loss, count, correct, count
    with torch.no_grad(), precision.arithmetic():
        for inputs, targets in one_pass(split, batch_size, device, world):
            with precision.autocast():
                outputs = module(inputs)
                total, count = loss(outputs, targets)
            correct = loss.correct(outputs, targets)
            sums += torch.stack([total, count, *(correct or (torch.zeros_like(total),) * 2)]).double()
    module.train()
    total_sum, counted, right, classified = world.sum_(sums).tolist()
    result = {"eval/loss": total_sum / counted if counted else math.nan}
    return result | ({"eval/accuracy": right / classified} if classified else {})


def one_pass(split: Split, batch_size: int, device: torch.device, world: World) -> Iterator[tuple[Any, Any]]:
    """This rank's batches of a split."""
    if (stream := streamed(split)) is not None:
        return stream.epoch(world.rank, world.size, batch_size)
    index = torch.arange(len(split), device=device)[world.rank :: world.size]
    return (split.batch(part) for part in torch.split(index, batch_size))
