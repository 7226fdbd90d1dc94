"""A loader that the user made, or a stream of samples: batches in an order of their own, epoch after epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, ClassVar

import torch

from gradlab.base.option import Invalid
from gradlab.base.randomness import apart, mix
from gradlab.data.reader import Key, single
from gradlab.data.stream import BATCHES, Stream
from gradlab.data.tree import mapped


@dataclass
class Loader(Stream):
    """Batches of `reader.dataset`, which is iterated from its beginning in every epoch. A place is that of a batch."""

    length: int | None = None
    """Batches of an epoch; None: as many as there are."""
    by_batch: ClassVar[bool] = True

    def __len__(self) -> int:
        return self.length or 1

    def batch(self, index: torch.Tensor) -> tuple[Any, Any]:
        """The first samples of the first batch, as many as are asked for."""
        ((_, batch),) = islice(self.batches(0), 1)
        return self.met(((0, (0,)), mapped(lambda t: t[: len(index)] if t.dim() else t, batch)))

    def at(self, key: Key) -> tuple[Any, Any]:
        return next(self.read([key]))[1]

    def read(self, keys: Iterable[Key]) -> Iterator[tuple[Key, tuple[Any, Any]]]:
        """The batches of the keys, of which the places rise within an epoch; others are read and left out."""
        now, coming = -1, iter(())  # type: tuple[int, Iterator[tuple[int, Any]]]
        for epoch, (place,) in keys:
            if epoch != now:
                now, coming = epoch, self.batches(epoch)
            batch = next((batch for i, batch in coming if i == place), None)
            if batch is None:
                why = f"batches of an epoch were expected, but {self.name} ended before batch {place + 1}"
                raise Invalid("data.batches", self.length, why)
            yield (epoch, (place,)), self.met(((epoch, (place,)), batch))

    def batches(self, epoch: int) -> Iterator[tuple[int, Any]]:
        """All batches of an epoch as the loader gives them. What it draws depends on seed and epoch alone."""
        loader, own = self.reader.dataset, apart(mix(self.reader.seed, epoch))
        parts = (loader, *(getattr(loader, name, None) for name in ("dataset", "sampler", "batch_sampler")))
        if isinstance(generator := getattr(loader, "generator", None), torch.Generator):
            generator.manual_seed(mix(self.reader.seed, epoch))
        coming = None
        for place in count():
            try:
                with own():
                    if coming is None:
                        for part in parts:
                            if hasattr(part, "set_epoch"):
                                part.set_epoch(epoch)
                        coming = iter(loader)
                    batch = next(coming)
            except StopIteration:
                return
            except Exception as error:
                last = (str(error).strip().splitlines() or [""])[-1]
                raise Invalid("data.target", self.name, f"batch {place}: {type(error).__name__}: {last}") from error
            yield place, mapped(single, batch)

    def epoch(self, rank: int, ranks: int, size: int) -> Iterator[tuple[Any, Any]]:
        for place, batch in islice(self.batches(0), rank, None, ranks):
            yield self.met(((0, (place,)), batch))

    def some(self, split: Any) -> Iterator[tuple[Any, Any]]:
        """Its first batches, in its own order."""
        return islice(self.epoch(0, 1, 1), BATCHES)


def own_length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None
