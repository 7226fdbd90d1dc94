"""Runs as lanes: each keeps its own books as if it ran alone, and its arithmetic is done with that of the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gradlab.base import randomness
from gradlab.measure.attempt import FIELDS, Attempt
from gradlab.train.outcome import FAILURES
from gradlab.train.trainer import Trainer


class HostValues:
    """What a lane measured in one update, on the host already."""

    def __init__(self, values: list[float]) -> None:
        self.values = values

    def read(self) -> list[float]:
        return self.values


class Lane(Trainer):
    """A run whose updates and evaluations are made for it."""

    restore: Callable[[Lane], None]
    """Writes its weights and the state of its update back into it; the stack sets it."""
    number: int
    """Its place in the stack as that began."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.random, self.generators = randomness.random_state(), randomness.all_random_state()
        self.fault: Exception | None = None
        """What ended it that is no failure of training, such as a full disk."""
        self.began = time.monotonic()
        self.asks: Iterator[Callable[[], None]] = iter(())
        self.ask: Callable[[], None] | None = None

    @property
    def scale(self) -> float:
        return self.latest.measured.read()[FIELDS.index("next_scale")] if self.latest else 1.0

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Whatever is raised inside ends this lane, and no other; `ask` then is None."""
        self.ask = None
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
            self.asks = self.course()
            self.ask = next(self.asks, None)

    def go_on(self) -> None:
        """Move to the next thing to do; `ask` is None at the end of the run."""
        with self.guarded():
            self.ask = next(self.asks, None)

    def failed(self, error: Exception) -> None:
        self.restore(self)
        super().failed(error)

    def save(self) -> None:
        self.restore(self)
        randomness.set_random_state(self.generators)
        super().save()

    def hold(self) -> None:
        self.restore(self)
        super().hold()

    def take(self, attempt: Attempt, following: int) -> None:
        """Take in what the stack measured of this lane's update."""
        self.update.attempts += 1
        self.cursor, self.outcome.epoch = following, self.epoch + 1
        with self.guarded():
            self.observe(attempt)
            self.ask = next(self.asks, None)
