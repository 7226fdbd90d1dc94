"""Mistakes in whether an update is applied, and at what learning rate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gradlab.base.option import option
from gradlab.pitfalls.base import CONSTANT, MOVING, SEVERAL, Pitfall

if TYPE_CHECKING:
    from gradlab.update.gradients import Gradients
    from gradlab.update.step import Update


@option("pitfall", "no_monitoring")
@dataclass
class NoMonitoring(Pitfall):
    """Gradients are not checked before the step: a NaN or an infinity is applied, and the weights are lost.

    Pitfall 8 of source "GM" in experiments/README.md.
    """

    replaces = "found_inf"

    def wrong(self, update: Update, right: Callable[[Gradients], torch.Tensor], gradients: Gradients) -> torch.Tensor:
        return torch.zeros((), device=update.device)


def scheduler_steps(attempts: int, steps: int, micro_batches: int) -> int:
    """How often a scheduler that steps after each micro-batch has done so when update `attempts` (from 0) is applied.

    steps: micro-batches a window; micro_batches: of an epoch, whose last window may be shorter. The update comes before
    the scheduler's step of its own last micro-batch.
    """
    epochs, windows = divmod(attempts, -(-micro_batches // steps))
    return epochs * micro_batches + min((windows + 1) * steps, micro_batches) - 1


@option("pitfall", "schedule_per_micro_batch")
@dataclass
class SchedulePerMicroBatch(Pitfall):
    """The schedule, made for updates, is stepped after each micro-batch: n times too fast, skipped updates included.

    Often left in loops that were written before accumulation was added.
    """

    replaces = "lr"
    needs = (SEVERAL, CONSTANT, MOVING)

    def wrong(self, update: Update, right: Callable[[], torch.Tensor]) -> torch.Tensor:
        steps = scheduler_steps(update.attempts, self.setting.steps, self.setting.micro_batches)
        return update.base_lr * update.schedule.factor(torch.full_like(update.applied, steps))
