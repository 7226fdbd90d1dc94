"""A run as a lane: it keeps its own records as if it ran alone; its arithmetic is done together with other lanes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gradlab.base import randomness
from gradlab.base.distributed import World
from gradlab.config.schema import Config
from gradlab.data.base import Splits
from gradlab.measure.attempt import FIELDS, Attempt
from gradlab.train.outcome import FAILURES
from gradlab.train.sink import Sink
from gradlab.train.trainer import Trainer
from gradlab.update.loss import Loss


class HostValues:
    """The measurements of one update of a lane, already on the host."""

    def __init__(self, values: list[float]) -> None:
        self.values = values

    def read(self) -> list[float]:
        return self.values


class Lane(Trainer):
    """A run whose updates and evaluations are computed by its stack."""

    restore: Callable[[Lane], None]
    """Writes its weights and the state of its update back into it; the stack sets it."""
    number: int
    """Its place in the stack at the beginning."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        world: World,
        sinks: tuple[Sink, ...],
        plain_config: dict[str, Any],
        say: Callable[[str], None],
        data: tuple[Splits, Loss],
    ) -> None:
        super().__init__(config, folder, world, sinks, plain_config, say, data)
        self.random, self.generators = randomness.random_state(), randomness.all_random_state()
        self.fault: Exception | None = None
        """What ended it that is no failure of training, such as a full disk."""
        self.began = time.monotonic()
        self.pending_actions: Iterator[Callable[[], None]] = iter(())
        self.next_action: Callable[[], None] | None = None

    @property
    def scale(self) -> float:
        return self.latest.measured.read()[FIELDS.index("next_scale")] if self.latest else 1.0

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """An exception inside ends this lane and no other; `next_action` is then None."""
        self.next_action = None
        try:
            try:
                yield
            except FAILURES as error:
                self.failed(error)
        except Exception as error:
            self.fault = error

    def begin(self) -> None:
        self.began = time.monotonic()
        with self.guarded():
            super().begin()
            self.pending_actions = self.actions()
            self.next_action = next(self.pending_actions, None)

    def advance(self) -> None:
        """Move to the next thing to do; `next_action` is None at the end of the run."""
        with self.guarded():
            self.next_action = next(self.pending_actions, None)

    def failed(self, error: Exception) -> None:
        self.restore(self)
        super().failed(error)

    def save(self) -> None:
        self.restore(self)
        randomness.set_random_state(self.generators)
        super().save()

    def keep_crash_state(self) -> None:
        self.restore(self)
        super().keep_crash_state()

    def take(self, attempt: Attempt, following: int) -> None:
        """Record what the stack measured in this lane's update."""
        self.update.attempts += 1
        self.cursor, self.outcome.epoch = following, self.epoch + 1
        with self.guarded():
            self.observe(attempt)
            self.next_action = next(self.pending_actions, None)
