"""The model of a run that has ended, run once more for its diagnosis."""

from __future__ import annotations

import torch

from gradlab.base import randomness
from gradlab.diagnosis.inspection import Inspection, inspect_model
from gradlab.diagnosis.replay.replay import Overflow, first_overflow
from gradlab.train.snapshot import copied
from gradlab.train.state import TrainerState


def runs_alone(trainer: TrainerState) -> bool:
    """Whether one rank can run the model: SyncBatchNorm would wait for the others."""
    return trainer.world.size == 1 or not any(isinstance(m, torch.nn.SyncBatchNorm) for m in trainer.module.modules())


def inspect(trainer: TrainerState) -> Inspection | None:
    """What the model is like at the end, on the window of the last update."""
    if trainer.latest is None or not runs_alone(trainer) or not trainer.config.monitor.layers:
        return None
    after = randomness.random_state()
    batches, _ = trainer.window_of(trainer.latest)
    found = inspect_model(
        trainer.module,
        trainer.loss,
        trainer.update.precision,
        batches,
        trainer.observed.modules,
        trainer.observed.order,
    )
    randomness.set_random_state(after)
    return found


def find_overflow(trainer: TrainerState) -> Overflow | None:
    """Run the first update of the last streak of failures again, and name the module that overflowed first.

    Where none was skipped, as where the gradients were not checked, it is the last update.
    """
    first = trainer.streak or trainer.latest
    if first is None or not runs_alone(trainer):
        return None
    after = randomness.random_state()
    randomness.set_random_state(first.random)
    precision = trainer.config.precision.build(trainer.device)
    precision.load_state_dict(first.precision)
    moved = None if trainer.failing or trainer.held is None else copied(trainer.module.state_dict())
    if moved is not None and trainer.held is not None:
        trainer.module.load_state_dict(trainer.held["model"])
    found = first_overflow(trainer.module, trainer.loss, precision, trainer.window_of(first)[0], trainer.world.size)
    if found is None and first.batches:  # the data, asked once more, gave others
        kept = [(b.inputs, b.targets) for b in first.batches if b.counts]
        found = first_overflow(trainer.module, trainer.loss, precision, kept, trainer.world.size)
    if moved is not None:
        trainer.module.load_state_dict(moved)
    randomness.set_random_state(after)
    return found
