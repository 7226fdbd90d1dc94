"""From a configuration to the data of a run and the loss that fits it."""

from __future__ import annotations

from dataclasses import replace

import torch

from gradlab.base import randomness
from gradlab.base.distributed import World
from gradlab.base.option import Invalid, within
from gradlab.config.schema import Config
from gradlab.data.base import IGNORE, Splits
from gradlab.data.check import check, pieces
from gradlab.data.loader import fingerprint
from gradlab.data.reader import alike
from gradlab.data.stream import by_batch, streamed
from gradlab.update.accumulation import Target
from gradlab.update.loss import Loss


def load_data(config: Config, device: torch.device) -> tuple[Splits, Loss]:
    """The data on the device and the loss that fits it, checked."""
    with within("data"):
        data = config.data.load(device)
        data.train = config.data.without_excluded(data.train)
    if config.loss.takes == "model" and streamed(data.train):
        data.spec = replace(data.spec, inputs="batch")
    if config.schedule.watched and (data.test is None or not config.trainer.evaluate_every):
        why = "has no test set" if data.test is None else "is not evaluated: trainer.evaluate_every=0"
        raise Invalid("schedule", type(config.schedule).__name__.lower(), f"follows the evaluation, but the data {why}")
    with within("loss"):
        loss = config.loss.resolve(data.spec)
        data.spec = replace(data.spec, whole_output=loss.whole_output)
    for split in (data.train, data.test):
        if (stream := streamed(split)) is not None:
            stream.begin(config.seed, loss.takes, loss.filled)
    if by_batch(data.train) and isinstance(config.accumulation, Target):
        raise Invalid("accumulation", "target", "not with a loader or max_tokens: batches have sizes of their own")
    with within("data"):
        check(data, config.data.batch_size, getattr(loss, "ignore_index", IGNORE))
    with within("loss"):
        for split in (data.train, data.test):
            for _, targets in pieces(split) if split is not None and not streamed(split) else ():
                loss.check(targets)
    return data, loss


def samples_of(config: Config, data: Splits, world: World) -> int:
    """Samples of an epoch."""
    samples, together = len(data.train), config.data.batch_size * world.size
    if config.data.drop_last and samples < together:
        why = f"leaves nothing of {samples} samples, in micro-batches of {together} on all ranks"
        raise Invalid("data.drop_last", True, why)
    return samples - samples % together if config.data.drop_last else samples


def check_sizes(data: Splits, world: World) -> None:
    """Raise `Invalid` on every rank where one has more samples than another, for which it would wait for ever."""
    sizes = [len(split) if split is not None else 0 for split in (data.train, data.test)]
    everyone = world.gather(sizes)
    for i, which in enumerate(("samples", "test samples")):
        if len({found[i] for found in everyone}) > 1:
            counts = ", ".join(str(found[i]) for found in everyone)
            why = f"must have as many {which} on every rank, but ranks 0 to {world.size - 1} have {counts}"
            raise Invalid("data", data.name, why)


def check_same(data: Splits, world: World) -> None:
    """Raise `Invalid` on every rank where one has others' samples: the batches of one order are divided among ranks.

    Samples that are drawn anew at each reading are not compared.
    """
    if world.size == 1:
        return
    state, index = randomness.all_random_state(), torch.arange(min(2, len(data.train)), device=data.train.device)
    first, again = (data.train.batch(index) for _ in range(2))
    randomness.set_random_state(state)
    found = world.gather(fingerprint(first) if alike(first, again) else "")
    read = next(filter(None, found), "")
    other = next((rank for rank, own in enumerate(found) if own and own != read), None)
    if other is not None:
        why = f"must be the same on every rank, which takes its part of it, but on rank {other} it begins otherwise"
        raise Invalid("data", data.name, why)
