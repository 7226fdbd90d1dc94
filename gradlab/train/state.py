"""All that a run consists of while it runs: its parts, its position, and what was counted so far."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from gradlab.base import randomness
from gradlab.base.distributed import World
from gradlab.config.schema import Config
from gradlab.data.base import Remaining, Split, Splits
from gradlab.data.loader import Loader
from gradlab.data.order import bucketed, epoch_order, window
from gradlab.data.reader import Key
from gradlab.data.stream import places, streamed
from gradlab.measure.attempt import Attempt
from gradlab.measure.record import Observed
from gradlab.train import build, build_data
from gradlab.train.feed import Feed
from gradlab.train.outcome import Outcome, Patience
from gradlab.train.unsaved_state import Unsaved, register_all
from gradlab.update.custom_loss import CustomLoss
from gradlab.update.loss import Loss
from gradlab.update.stats import MicroBatch


def gathered(value: Any, keep: bool) -> Any:
    """The same nested structure with DTensors gathered, on the host; None in their place unless `keep`."""
    if hasattr(value, "full_tensor"):
        whole = value.full_tensor()
        return whole.cpu() if keep else None
    if isinstance(value, dict):
        return {k: gathered(v, keep) for k, v in value.items()}
    return [gathered(v, keep) for v in value] if isinstance(value, list) else value


class TrainerState:
    """Builds the parts of a run. Raises `Invalid` where the parts of the configuration do not fit together."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        world: World | None = None,
        plain_config: dict[str, Any] | None = None,
        data: tuple[Splits, Loss] | None = None,
    ) -> None:
        """data: what `build_data.load_data` returns, where it is at hand."""
        self.config, self.folder, self.world = config, folder, world or World()
        self.plain_config = plain_config or {}
        self.device = build.pick_device(config, self.world)
        build.deterministic(config.trainer.deterministic)
        randomness.seed_all(config.seed)
        self.data, self.loss = data or build_data.load_data(config, self.device)
        self.samples = build_data.samples_of(config, self.data, self.world)
        build_data.check_sizes(self.data, self.world)
        build_data.check_same(self.data, self.world)
        self.module, self.called, late = build.build_model(config, self.data, self.loss, self.device, self.world)
        self.sharded = build.sharded(config, self.world)
        self.unsaved = Unsaved(self.module, late, shared=self.sharded or self.world.size == 1)
        self.model = build.wrap(self.module, self.called, config, self.device, self.world)
        self.update = build.build_update(
            config, self.model, self.called, self.loss, self.samples, self.device, self.world
        )
        of_it = (self.module, self.update.names, self.update.params, self.called, config.trainer.compile)
        self.observed = Observed(config.monitor, *of_it, dtensors=getattr(self.update, "dtensors", ()))
        if self.world.rank:  # dropout draws differ between ranks
            torch.manual_seed(randomness.mix(config.seed, self.world.rank))
        self.epoch = self.cursor = self.skipped = self.clipped = 0
        self.patience = Patience(config.trainer.hopeless, config.trainer.patience)
        self.outcome = Outcome()
        self.streak: Attempt | None = None
        """The first attempt of the last streak of failures."""
        self.latest: Attempt | None = None
        self.failing = False
        self.crash_state: dict[str, Any] | None = None
        """What the last streak began with, where the loss scale had fallen below 1 in it."""
        self.notes: list[str] = []
        """What is said as the run begins."""
        if config.trainer.parallel == "fsdp" and not self.sharded:
            self.notes.append("trainer.parallel=fsdp: with one rank nothing is divided")
        if note := getattr(self.update.optimizer, "note", ""):
            self.notes.append(note)
        self.order_of: tuple[int, torch.Tensor] | None = None
        self.stream = streamed(self.data.train)
        self.feed = Feed(self.stream, self.keys) if self.stream else None

    @property
    def planned(self) -> int:
        """Updates of the whole run if none is skipped."""
        return build.planned_updates(self.config, self.samples, self.world.size)

    @property
    def scale(self) -> float:
        """The loss scale of the next update; waits for the device."""
        return self.update.precision.scale.item()

    @property
    def evaluation_batch(self) -> int:
        """Samples of a forward pass of the evaluation; of training's, where a loss is one number of a whole batch.

        Such a loss may be a sum, or may compare samples, as contrastive ones do: then it depends on how many there are.
        """
        if isinstance(self.loss, CustomLoss) and ("mean" in self.loss.forms.values() or not self.loss.exact):
            return self.config.data.batch_size
        return max(self.config.data.batch_size, 1 if self.stream else 64)

    def full_state(self) -> dict[str, Any]:
        """State of the model and of the update as one process has it, for rank 0; called on all ranks at once."""
        both = {"model": self.module.state_dict(), "update": self.update.state_dict()}
        return gathered(both, self.world.main) if self.sharded else both

    def assemble(self) -> None:
        """After the run, on all ranks at once: a sharded model becomes whole on rank 0, for what that does alone."""
        if not self.sharded:
            return
        state, after = gathered(self.module.state_dict(), self.world.main), randomness.random_state()
        if self.world.main:
            self.module = build.build_model(self.config, self.data, self.loss, self.device, World()).module
            register_all(self.module, self.unsaved.registered(), state)
            self.module.load_state_dict(state)
            self.module.train()
            randomness.set_random_state(after)

    def unseen(self) -> Split | None:
        """The test set; None where there is none, or it was evaluated before a completed run was resumed."""
        split, done = self.data.test, self.outcome.eval
        if split is None or not len(split) or (done and done[-1]["attempt"] == self.outcome.attempts):
            return None
        return split

    def batches(self, epoch: int, cursor: int, steps: int, rank: int | None = None) -> tuple[list[MicroBatch], int]:
        """A rank's (this one's) micro-batches of the window at `cursor`, and the next cursor."""
        order, asked = self.order(epoch), rank
        rank = self.world.rank if rank is None else rank
        indices, following = window(order, cursor, self.config.data.batch_size, steps, rank, self.world.size)
        batches = []
        for i, index in enumerate(indices):
            counts = index.numel() > 0
            if self.feed is None:
                inputs, targets = self.data.train.batch(index if counts else order[cursor : cursor + 1])
            else:
                key = epoch, places(self.data.train, index if counts else order[:1])
                at = cursor + i * self.config.data.batch_size * self.world.size
                inputs, targets = self.feed.take(key, epoch, at) if asked is None else self.feed.stream.at(key)
            batches.append(MicroBatch(inputs, targets, counts))
        return batches, following

    def order(self, epoch: int) -> torch.Tensor:
        """(N,) the order of an epoch's samples."""
        if self.order_of is None or self.order_of[0] != epoch:
            order = self.new_order(epoch)
            self.order_of = epoch, order if self.stream else order.to(self.device, non_blocking=True)
        return self.order_of[1]

    def new_order(self, epoch: int) -> torch.Tensor:
        if isinstance(self.stream, Loader):
            return torch.arange(self.samples)
        order = epoch_order(len(self.data.train), self.config.seed, epoch)[: self.samples]
        if self.stream is None or self.stream.lengths is None:
            return order
        lengths = self.stream.lengths[list(places(self.data.train, torch.arange(len(self.data.train))))]
        return bucketed(order, lengths, self.config.data.batch_size * self.world.size, self.config.seed, epoch)

    def keys(self, epoch: int, cursor: int) -> Iterator[Key]:
        """What this rank reads of a stream from there to the end of the run, a micro-batch after the other."""
        for each in range(epoch, self.config.trainer.epochs):
            order = self.new_order(each)
            place = (order, cursor if each == epoch else 0, self.config.data.batch_size, self.samples)
            for index in window(*place, self.world.rank, self.world.size)[0]:
                yield each, places(self.data.train, index if index.numel() else order[:1])

    def place(self, index: int) -> int:
        """The place of a training sample in the whole set, before `data.without`."""
        train = self.data.train
        return int(train.kept[index]) if isinstance(train, Remaining) else index

    def window_of(self, attempt: Attempt) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], list[int]]:
        """Every micro-batch of an update, this rank's first, as the fault may be in any; and the rank of each."""
        ranks = sorted(range(self.world.size), key=lambda rank: rank != self.world.rank)
        windows = [(rank, self.batches(attempt.epoch, attempt.cursor, attempt.steps, rank)[0]) for rank in ranks]
        counted = [(rank, b) for rank, batches in windows for b in batches if b.counts]
        return [(b.inputs, b.targets) for _, b in counted], [rank for rank, _ in counted]
