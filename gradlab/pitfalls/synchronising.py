"""Mistakes with DDP's no_sync, which is read in the forward pass of a micro-batch and decides on the all-reduce."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gradlab.base.option import option
from gradlab.pitfalls.base import CONSTANT, RANKS, REMAINDER, SEVERAL, WrongBackward

if TYPE_CHECKING:
    from gradlab.pitfalls.base import Backward, Window
    from gradlab.update.step import Update


def synchronised(right: Backward, window: Window, i: int, weight: torch.Tensor) -> torch.Tensor:
    """Run micro-batch i as if it were the last of its window, with the all-reduce."""
    return right(window[i : i + 1], 0, weight)


@option("pitfall", "ddp_sync_every_micro_batch")
@dataclass
class SyncEveryMicroBatch(WrongBackward):
    """Accumulation under DDP without no_sync: the same gradient, all-reduced n times an update instead of once.

    Pitfall 9 of source "GM" in experiments/README.md.
    """

    needs = (RANKS, SEVERAL)

    def wrong(self, update: Update, right: Backward, window: Window, i: int, weight: torch.Tensor) -> torch.Tensor:
        return synchronised(right, window, i, weight)


@option("pitfall", "no_sync_around_backward_only")
@dataclass
class NoSyncAroundBackwardOnly(WrongBackward):
    """no_sync is entered after the forward pass, in which DDP has already decided to all-reduce.

    The same gradient, all-reduced n times: no result shows it.
    """

    needs = (RANKS, SEVERAL)

    def wrong(self, update: Update, right: Backward, window: Window, i: int, weight: torch.Tensor) -> torch.Tensor:
        with ExitStack() as stack:

            def enter(*args: Any) -> None:
                stack.enter_context(update.model.no_sync())

            if i + 1 < len(window):
                stack.callback(update.model.register_forward_hook(enter).remove)
            return synchronised(right, window, i, weight)


@option("pitfall", "no_sync_off_by_one")
@dataclass
class NoSyncOffByOne(WrongBackward):
    """no_sync where i % n, step where (i + 1) % n: only the first micro-batch is reduced, the others stay local.

    Seen in a public recipe.
    """

    needs = (RANKS, SEVERAL)

    def wrong(self, update: Update, right: Backward, window: Window, i: int, weight: torch.Tensor) -> torch.Tensor:
        with update.model.no_sync() if i % len(window) else nullcontext():
            return synchronised(right, window, i, weight)


@option("pitfall", "remainder_unsynchronised")
@dataclass
class RemainderUnsynchronised(WrongBackward):
    """The last, shorter window of an epoch ends inside no_sync: each rank steps with its own gradient.

    The ranks' weights then differ. Common recipes do so.
    """

    measure_every: int = 1  # of the remainder too, wherever it falls
    needs = (RANKS, SEVERAL, CONSTANT, REMAINDER)

    def wrong(self, update: Update, right: Backward, window: Window, i: int, weight: torch.Tensor) -> torch.Tensor:
        with update.model.no_sync() if len(window) < self.setting.steps else nullcontext():
            return right(window, i, weight)
