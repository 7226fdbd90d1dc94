"""The samples of single updates, measured one by one: which of them made the update what it was."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from gradlab.base import randomness
from gradlab.base.distributed import World
from gradlab.data.order import window
from gradlab.diagnosis.finished_run import WHOLE_SET
from gradlab.measure.samples import MOST, Sample, measured, ranked, searched
from gradlab.train import build
from gradlab.train.inspection import runs_alone
from gradlab.train.state import TrainerState

DRAWS = 2
"""Other initial weights with which samples that are not finite are measured again."""
OFTEN = 0.9
"""Part of the samples that are finite which must be so with other weights, too."""
SEARCHED = 4096
"""Samples of a training set that are searched for others that stand out."""


def indices(trainer: TrainerState, attempt: int) -> torch.Tensor | None:
    """(N,) the samples of an update, on all ranks; None where its place in the data is not known.

    They follow from seed, epoch and position, unless the length of windows varies.
    """
    config, world = trainer.config, trainer.world.size
    if config.accumulation.varies or attempt < 1:
        return None
    steps, batch = build.steps_at(config, 0, world), config.data.batch_size
    epoch, place = divmod(attempt - 1, math.ceil(trainer.samples / (batch * steps * world)))
    order, cursor = trainer.new_order(epoch), place * batch * steps * world
    parts = [part for rank in range(world) for part in window(order, cursor, batch, steps, rank, world)[0]]
    return torch.cat(parts).to(trainer.device) if parts else None


@randomness.random_state_restored()
def samples_of(trainer: TrainerState, attempts: Iterable[int]) -> dict[int, list[Sample]]:
    """The samples of these updates, the most unusual first; under WHOLE_SET all that stand out, if some of these do.

    Measured with the weights that the run began with, which no sample has damaged: with those of a diverged run, any
    may stand out. The update before is what is usual. Those of an update that failed are `broken` where they are not
    finite with the weights that it had. Indices are places in the set before `data.without`.
    """
    wanted = {attempt: index for attempt in attempts if (index := indices(trainer, attempt)) is not None}
    if not wanted or not runs_alone(trainer):
        return {}
    randomness.seed_all(trainer.config.seed)
    begun = build.build_model(trainer.config, trainer.data, trainer.loss, trainer.device, World()).module
    read, found, everyone = trainer.data.train.batch, dict[int, list[Sample]](), list[Sample]()
    for attempt, index in wanted.items():
        usual = indices(trainer, attempt - 1)
        others = measured(begun, trainer.loss, usual, read) if usual is not None else []
        found[attempt] = ranked(measured(begun, trainer.loss, index, read), others)
        everyone += [*found[attempt], *others]
    if any(s.stands_out for samples in found.values() for s in samples):
        order = torch.cat([*wanted.values(), torch.arange(trainer.samples, device=trainer.device)[:SEARCHED]])
        found[WHOLE_SET] = searched(begun, trainer.loss, order.unique(), read, everyone)
    if trainer.failing and (last := found[max(found)]):
        begun.load_state_dict(trainer.module.state_dict())
        place = torch.tensor([s.index for s in last], device=trainer.device)
        for s, now in zip(last, measured(begun, trainer.loss, place, read), strict=True):
            s.broken = not now.finite
    every = {id(s): s for samples in found.values() for s in samples}.values()
    tell_apart(trainer, [s for s in every if not s.finite], [s.index for s in every if s.finite][:MOST])
    for s in every:
        s.index = trainer.place(s.index)
    return found


def tell_apart(trainer: TrainerState, failing: list[Sample], others: list[int]) -> None:
    """Mark the samples that are finite with other initial weights, or all where others are not finite with those."""
    wanted = sorted({s.index for s in failing} | {*others})
    index = torch.tensor(wanted, dtype=torch.long, device=trainer.device)
    for draw in range(DRAWS if failing else 0):
        randomness.seed_all(trainer.config.seed + 1 + draw)
        begun = build.build_model(trainer.config, trainer.data, trainer.loss, trainer.device, World()).module
        parts = (measured(begun, trainer.loss, part, trainer.data.train.batch) for part in index.split(MOST))
        finite = {s.index for part in parts for s in part if s.finite}
        for s in failing:
            s.by_weights |= s.index in finite or len(finite & {*others}) < OFTEN * len(others)
