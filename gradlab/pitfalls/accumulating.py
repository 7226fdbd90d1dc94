"""Mistakes in adding up the gradients of a window's n micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gradlab.base.option import option
from gradlab.pitfalls.base import CLIPPED, CONSTANT, MEAN, REMAINDER, SEVERAL, Pitfall, WrongBackward, gradients

if TYPE_CHECKING:
    from gradlab.pitfalls.base import Backward, Window
    from gradlab.update.step import Update


@option("pitfall", "unscaled_accumulation")
@dataclass
class UnscaledAccumulation(WrongBackward):
    """The losses of n micro-batches are not divided by n: the gradient is n times too large.

    Under SGD that is a learning rate n times too high; Adam cancels it, but for eps, clipping and weight decay.
    Pitfall 2 of source "GM" in experiments/README.md.
    """

    needs = (SEVERAL, MEAN)

    def wrong(self, update: Update, right: Backward, window: Window, i: int, weight: torch.Tensor) -> torch.Tensor:
        return right(window, i, weight * len(window))


@option("pitfall", "gradients_scaled_by_hand")
@dataclass
class GradientsScaledByHand(WrongBackward):
    """p.grad, not the loss, is divided by n after every backward pass: what was there before is divided again.

    Micro-batch i of n (from 1) weighs n^-(n - i) of what it should. Often seen in snippets with gradient accumulation.
    """

    needs = (SEVERAL, MEAN)

    def wrong(self, update: Update, right: Backward, window: Window, i: int, weight: torch.Tensor) -> torch.Tensor:
        loss = right(window, i, weight * len(window))
        torch._foreach_div_(gradients(update), len(window))
        return loss


@option("pitfall", "mean_of_means")
@dataclass
class MeanOfMeans(WrongBackward):
    """Each micro-batch's own mean is divided by n: with unequal numbers of tokens, those of short texts weigh more.

    Common recipes do so, and call it equal to one large batch.
    """

    needs = (SEVERAL, MEAN)

    def wrong(self, update: Update, right: Backward, window: Window, i: int, weight: torch.Tensor) -> torch.Tensor:
        count = update.loss.count(window[i].targets).clamp(min=1)
        return right(window, i, update.precision.scale / (count * len(window)))  # DDP averages over the ranks


@option("pitfall", "remainder_underscaled")
@dataclass
class RemainderUnderscaled(WrongBackward):
    """The last, shorter window of an epoch is divided by the full number of micro-batches.

    Common recipes do so.
    """

    measure_every: int = 1  # of the remainder too, wherever it falls
    needs = (SEVERAL, CONSTANT, REMAINDER, MEAN)

    def wrong(self, update: Update, right: Backward, window: Window, i: int, weight: torch.Tensor) -> torch.Tensor:
        return right(window, i, weight * len(window) / self.setting.steps)


@option("pitfall", "zero_grad_in_window")
@dataclass
class ZeroGradInWindow(WrongBackward):
    """Gradients are cleared before every micro-batch: only the last one's share of the mean is left.

    Often seen in snippets with gradient accumulation.
    """

    needs = (SEVERAL,)

    def wrong(self, update: Update, right: Backward, window: Window, i: int, weight: torch.Tensor) -> torch.Tensor:
        update.zero_grad()
        return right(window, i, weight)


@option("pitfall", "clip_each_micro_batch")
@dataclass
class ClipEachMicroBatch(WrongBackward):
    """The accumulated gradient is clipped after every micro-batch, not once at the end of the window.

    Early micro-batches are clipped again and again. Often seen in snippets with gradient accumulation.
    """

    needs = (SEVERAL, CLIPPED)

    def wrong(self, update: Update, right: Backward, window: Window, i: int, weight: torch.Tensor) -> torch.Tensor:
        loss = right(window, i, weight)
        update.unscale()  # clipping scaled gradients is another pitfall
        update.clip.clip_(update.measure(), update.clip_state)
        if update.precision.loss_scale is not None:
            torch._foreach_mul_(gradients(update), update.precision.scale)
        return loss


@option("pitfall", "missing_zero_grad")
@dataclass
class MissingZeroGrad(Pitfall):
    """Gradients are never cleared: each update adds to all those before, like a momentum of 1.

    A resumed run begins without them. Pitfall 5 of source "GM" in experiments/README.md.
    """

    replaces = "zero_grad"

    def wrong(self, update: Update, right: Callable[[], None]) -> None:
        pass
