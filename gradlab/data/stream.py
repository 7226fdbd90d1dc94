"""A split that is read batch by batch, anew in every epoch, so that random augmentation draws anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from gradlab.base.option import Invalid
from gradlab.data.batch_format import BatchFormat
from gradlab.data.reader import Key, Reader, Unreadable, leave_signals
from gradlab.data.tree import mapped

SOME, TOGETHER = 1024, 32
"""Samples from which the best constant answer is found, and samples in a batch of them."""
BATCHES = 4
"""Batches from which it is found, where they have sizes of their own."""


@dataclass
class Loading:
    """How batches are read ahead."""

    workers: int = 0
    prefetch: int = 2
    pin: bool = False


@dataclass
class DataStream:
    """Samples of a map-style data set, read as they are needed."""

    reader: Reader
    to: torch.device
    batch_format: BatchFormat
    loading: Loading
    name: str
    """The data's name, for messages."""
    classes: int = 0
    """Classes that the model tells apart; 0: not known."""
    lengths: torch.Tensor | None = None  # (N,)
    """Lengths of the samples, where like ones are to be together."""

    by_batch: ClassVar[bool] = False
    """Whether a place in an epoch is that of a batch, and not of a sample."""

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def __len__(self) -> int:
        return len(self.reader.dataset)

    def begin(self, seed: int, takes: str, filled: Callable[[Any], Any]) -> None:
        """The run's seed, and what its loss takes: see `BatchFormat`."""
        self.reader.seed, self.batch_format.takes, self.batch_format.filled = seed, takes, filled

    def sample(self, key: Key) -> tuple[Key, Any]:
        """The samples of these places, as they were read."""
        return self.reader[key]

    def batch(self, index: torch.Tensor) -> tuple[Any, Any]:
        """Inputs and targets of the samples, read here and now, as in the first epoch."""
        return self.at((0, tuple(index.tolist())))

    def at(self, key: Key) -> tuple[Any, Any]:
        """The batch of a key, read here and now."""
        return self.prepared(self.reader[key])

    def read(self, keys: Iterable[Key]) -> Iterator[tuple[Key, tuple[Any, Any]]]:
        """The batches of the keys, in their order, read ahead by the workers."""
        some, loading, awaited = self.loading.workers > 0, self.loading, "the first samples"
        loader: Any = torch.utils.data.DataLoader(
            self.reader,  # type: ignore[arg-type]
            batch_size=None,
            sampler=keys,  # type: ignore[arg-type]
            num_workers=loading.workers,
            prefetch_factor=loading.prefetch if some else None,
            pin_memory=loading.pin,
            collate_fn=same,
            worker_init_fn=leave_signals,
            generator=torch.Generator(),  # else it draws from the generator that dropout draws from
        )
        try:
            for got in loader:
                awaited = f"what follows the samples {list(got[0][1][:8])}"
                yield got[0], self.prepared(got)
        except (RuntimeError, ConnectionError, EOFError, FileNotFoundError) as error:
            if some and ("worker" in str(error) or not isinstance(error, RuntimeError)):  # or a batch lost with it
                raise self.dead(error, awaited) from None
            raise

    def prepared(self, got: tuple[Key, Any]) -> tuple[Any, Any]:
        """What was read, on the device and as the model and the loss take it."""
        batch = got[1]
        if isinstance(batch, Unreadable):
            raise Invalid("data.target", self.name, batch.why)
        self.check(got[0], batch)
        return self.batch_format(mapped(lambda t: t.to(self.to, non_blocking=True), batch))

    def check(self, key: Key, batch: Any) -> None:
        """Raise `Invalid` for a class that the model does not have; on the host, before anything is computed."""
        _, targets = self.batch_format.parts(batch)
        if not self.classes or not isinstance(targets, torch.Tensor) or targets.is_floating_point():
            return
        if targets.numel() and int(targets.max()) >= self.classes:
            why = f"a target of the samples {list(key[1][:8])} is {int(targets.max())}, but the model has"
            raise Invalid("data.target", self.name, f"{why} {self.classes} outputs")

    def dead(self, error: Exception, awaited: str) -> Invalid:
        said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        why = f"a worker that reads {self.name} died, awaited for {awaited}: {said}"
        return Invalid("data.workers", self.loading.workers, why)

    def epoch(self, rank: int, ranks: int, size: int) -> Iterator[tuple[Any, Any]]:
        """A rank's batches of one pass in the order of the set, the same in every pass."""
        places = torch.arange(len(self))[rank::ranks]
        for _, batch in self.read((0, tuple(part.tolist())) for part in places.split(size)):
            yield batch

    def some(self, split: Any) -> Iterator[tuple[Any, Any]]:
        """Batches of random samples of a split of this stream, the same ones every time."""
        number, size = (BATCHES, 1) if self.by_batch else (SOME, TOGETHER)
        index = torch.randperm(len(split), generator=torch.Generator().manual_seed(0))[:number]
        for _, batch in self.read((0, places(split, part)) for part in index.split(size)):
            yield batch


def same(batch: Any) -> Any:
    return batch


def streamed(split: Any) -> DataStream | None:
    """The stream that a split is, or is a part of."""
    found = getattr(split, "whole", split)
    return found if isinstance(found, DataStream) else None


def by_batch(split: Any) -> bool:
    """Whether a place in an epoch of a split is that of a batch."""
    return (stream := streamed(split)) is not None and stream.by_batch


def places(split: Any, index: torch.Tensor) -> tuple[int, ...]:
    """The places in the stream of samples of a split of it."""
    kept = getattr(split, "kept", None)
    return tuple((index if kept is None else kept[index]).tolist())


def some(split: Any) -> Iterator[tuple[Any, Any]]:
    """Batches of samples drawn at random, always the same."""
    stream = streamed(split)
    assert stream is not None
    return stream.some(split)
