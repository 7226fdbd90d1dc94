"""Mistakes with the loss scale."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gradlab.base.option import option
from gradlab.pitfalls.base import CLIPPED, SCALED, Deferred, Pitfall, Setting

if TYPE_CHECKING:
    from gradlab.update.step import Update


@option("pitfall", "clip_before_unscale")
@dataclass
class ClipBeforeUnscale(Pitfall):
    """Clipping sees gradients that are still scaled: the effective threshold is max_norm / scale."""

    replaces = "unscale"
    needs = (SCALED, CLIPPED)

    def prepare(self, update: Update, setting: Setting) -> None:
        self.later = Deferred(update.optimizer.register_step_pre_hook)

    def wrong(self, update: Update, right: Callable[[], None]) -> None:
        self.later.work = right


@option("pitfall", "unscale_twice")
@dataclass
class UnscaleTwice(Pitfall):
    """Once before clipping and once more before the step: the step is taken with gradient / scale."""

    replaces = "unscale"
    needs = (SCALED,)

    def prepare(self, update: Update, setting: Setting) -> None:
        self.later = Deferred(update.optimizer.register_step_pre_hook)

    def wrong(self, update: Update, right: Callable[[], None]) -> None:
        right()
        self.later.work = right


@option("pitfall", "step_past_scaler")
@dataclass
class StepPastScaler(Pitfall):
    """The optimizer steps whether the gradients overflowed or not; the scale backs off all the same."""

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
    """At a norm that is not finite the loop goes on, past the scale's update as well: it never backs off."""

    replaces = "update_scale"
    needs = (SCALED,)

    def wrong(self, update: Update, right: Callable[[torch.Tensor], None], found_inf: torch.Tensor) -> None:
        if not found_inf.item():
            right(found_inf)
