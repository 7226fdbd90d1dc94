"""A rank's micro-batches of a stream, read ahead in the order of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gradlab.data.reader import Key
from gradlab.data.stream import DataStream


class Feed:
    """Reads from wherever the run is: over the ends of epochs, so that workers never wait."""

    def __init__(self, stream: DataStream, keys: Callable[[int, int], Iterator[Key]]) -> None:
        """keys: of all micro-batches from an epoch and a cursor in it on."""
        self.stream, self.keys = stream, keys
        self.coming: Iterator[tuple[Key, tuple[Any, Any]]] | None = None

    def take(self, key: Key, epoch: int, cursor: int) -> tuple[Any, Any]:
        """The micro-batch of a key, which is at that place of the run."""
        if self.coming is not None:
            found, batch = next(self.coming, (None, (None, None)))
            if found == key:
                return batch
        self.coming = self.stream.read(self.keys(epoch, cursor))
        return next(self.coming)[1]

    def close(self) -> None:
        """End the workers."""
        self.coming = None
