"""Mistakes in adding up the gradients of a window's n micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gradlab.base.option import option
from gradlab.pitfalls.base import CLIPPED, CONSTANT, MEAN, REMAINDER, SEVERAL, Pitfall, Setting, gradients

if TYPE_CHECKING:
    from gradlab.update.step import MicroBatch, Update

Backward = Callable[["Sequence[MicroBatch]", int, "torch.Tensor"], "torch.Tensor"]
"""`Update.backward`: window, i, weight -> sum of losses."""


@option("pitfall", "unscaled_accumulation")
@dataclass
class UnscaledAccumulation(Pitfall):
    """The means of n micro-batches are added and not divided by n: n times the gradient."""

    replaces = "backward"
    needs = (SEVERAL, MEAN)

    def wrong(
        self, update: Update, right: Backward, window: Sequence[MicroBatch], i: int, weight: torch.Tensor
    ) -> torch.Tensor:
        return right(window, i, weight * len(window))


@option("pitfall", "gradients_scaled_by_hand")
@dataclass
class GradientsScaledByHand(Pitfall):
    """p.grad, not the loss, is divided by n after every backward pass: what was there before is divided again."""

    replaces = "backward"
    needs = (SEVERAL, MEAN)

    def wrong(
        self, update: Update, right: Backward, window: Sequence[MicroBatch], i: int, weight: torch.Tensor
    ) -> torch.Tensor:
        loss = right(window, i, weight * len(window))
        torch._foreach_div_(gradients(update), len(window))
        return loss


@option("pitfall", "mean_of_means")
@dataclass
class MeanOfMeans(Pitfall):
    """Each micro-batch's own mean is divided by n, so that a token counts for more where there are few."""

    replaces = "backward"
    needs = (SEVERAL, MEAN)

    def wrong(
        self, update: Update, right: Backward, window: Sequence[MicroBatch], i: int, weight: torch.Tensor
    ) -> torch.Tensor:
        count = update.loss.count(window[i].targets).clamp(min=1)
        return right(window, i, update.precision.scale / (count * len(window)))  # DDP averages over the ranks


@option("pitfall", "remainder_underscaled")
@dataclass
class RemainderUnderscaled(Pitfall):
    """The last, shorter window of an epoch is divided by the full number of micro-batches."""

    measure_every: int = 1  # of the remainder too, wherever it falls

    replaces = "backward"
    needs = (SEVERAL, CONSTANT, REMAINDER, MEAN)

    def prepare(self, update: Update, setting: Setting) -> None:
        self.steps = setting.steps

    def wrong(
        self, update: Update, right: Backward, window: Sequence[MicroBatch], i: int, weight: torch.Tensor
    ) -> torch.Tensor:
        return right(window, i, weight * len(window) / self.steps)


@option("pitfall", "zero_grad_in_window")
@dataclass
class ZeroGradInWindow(Pitfall):
    """The gradients are cleared before every micro-batch: only the last one's share of the mean is left."""

    replaces = "backward"
    needs = (SEVERAL,)

    def wrong(
        self, update: Update, right: Backward, window: Sequence[MicroBatch], i: int, weight: torch.Tensor
    ) -> torch.Tensor:
        update.zero_grad()
        return right(window, i, weight)


@option("pitfall", "clip_each_micro_batch")
@dataclass
class ClipEachMicroBatch(Pitfall):
    """What has been added up so far is clipped after every micro-batch: early ones are clipped again and again."""

    replaces = "backward"
    needs = (SEVERAL, CLIPPED)

    def wrong(
        self, update: Update, right: Backward, window: Sequence[MicroBatch], i: int, weight: torch.Tensor
    ) -> torch.Tensor:
        loss = right(window, i, weight)
        update.unscale()  # the threshold is meant for true gradients: that mistake is another pitfall
        update.clip.clip_(update.measure(), update.clip_state)
        if update.precision.loss_scale is not None:
            torch._foreach_mul_(gradients(update), update.precision.scale)
        return loss


@option("pitfall", "missing_zero_grad")
@dataclass
class MissingZeroGrad(Pitfall):
    """Gradients are never cleared: each update adds to all those before. A resumed run begins without them."""

    replaces = "zero_grad"

    def wrong(self, update: Update, right: Callable[[], None]) -> None:
        pass
