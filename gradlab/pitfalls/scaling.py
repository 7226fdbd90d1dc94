"""Mistakes with the loss scale."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gradlab.base.option import option
from gradlab.pitfalls.base import CLIPPED, SCALED, Deferred, Pitfall

if TYPE_CHECKING:
    from gradlab.update.step import Update


@option("pitfall", "clip_before_unscale")
@dataclass
class ClipBeforeUnscale(Pitfall):
    """Clipping before the loss scale s is divided out: the true gradient is clipped to max_norm / s.

    Under SGD steps shrink by up to s; under Adam only as far as eps matters. The logged norm is the scaled one.
    Pitfall 4 of source "GM" in experiments/README.md.
    """

    replaces = "unscale"
    needs = (SCALED, CLIPPED)

    def prepare(self, update: Update) -> None:
        self.later = Deferred(update.optimizer.register_step_pre_hook)

    def wrong(self, update: Update, right: Callable[[], None]) -> None:
        self.later.work = right


@option("pitfall", "unscale_twice")
@dataclass
class UnscaleTwice(Pitfall):
    """Gradients are divided by the loss scale before clipping, and again before the step: they are too small by it.

    PyTorch's own scaler refuses it; a hand-written one does not. Often seen in snippets with mixed precision.
    """

    replaces = "unscale"
    needs = (SCALED,)

    def prepare(self, update: Update) -> None:
        self.later = Deferred(update.optimizer.register_step_pre_hook)

    def wrong(self, update: Update, right: Callable[[], None]) -> None:
        right()
        self.later.work = right


@option("pitfall", "step_past_scaler")
@dataclass
class StepPastScaler(Pitfall):
    """optimizer.step() instead of scaler.step(): gradients that overflowed are applied, though the scale backs off.

    Often seen in snippets with mixed precision.
    """

    replaces = "step"
    needs = (SCALED,)

    def wrong(
        self,
        update: Update,
        right: Callable[[torch.Tensor, torch.Tensor], None],
        lr: torch.Tensor,
        found_inf: torch.Tensor,
    ) -> None:
        right(lr, torch.zeros_like(found_inf))


@option("pitfall", "live_lock")
@dataclass
class LiveLock(Pitfall):
    """At a non-finite norm the loop continues without updating the loss scale, which therefore never backs off.

    The scale that overflowed stays, and so does the overflow. A well-meant guard, often seen in hand-written loops.
    """

    replaces = "update_scale"
    needs = (SCALED,)

    def wrong(self, update: Update, right: Callable[[torch.Tensor], None], found_inf: torch.Tensor) -> None:
        if not found_inf.item():
            right(found_inf)
