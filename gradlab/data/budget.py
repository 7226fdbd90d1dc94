"""Micro-batches of unequal numbers of samples and about the same number of tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from gradlab.data.reader import Key, Reader
from gradlab.data.stream import DataStream


def budgeted(lengths: torch.Tensor, most: int, packed: bool = False) -> list[list[int]]:
    """Batches of samples of similar lengths, by their places: samples times longest length is at most `most` in each.

    lengths: (N,), none above `most`. packed: the sum of the lengths in its place.
    """
    batches: list[list[int]] = [[]]
    total = 0.0
    for place in lengths.argsort(stable=True).tolist():  # the longest of a batch is its last
        length = float(lengths[place])
        total = total + length if packed else (len(batches[-1]) + 1) * length
        if total > most:
            batches.append([])
            total = length
        batches[-1].append(place)
    return batches


@dataclass
class BatchReader(Reader):
    """Reads batches by their numbers. What a sample draws depends on its own place, not on its batch."""

    batches: list[list[int]] = field(default_factory=list)

    def __getitem__(self, key: Key) -> tuple[Key, Any]:
        epoch, numbers = key
        return key, super().__getitem__((epoch, tuple(place for n in numbers for place in self.batches[n])))[1]


@dataclass
class Budgeted(DataStream):
    """Batches of a map-style data set. A place in an epoch is that of a batch."""

    reader: BatchReader
    by_batch: ClassVar[bool] = True

    def __len__(self) -> int:
        return len(self.reader.batches)

    def sample(self, key: Key) -> tuple[Key, Any]:
        return Reader.__getitem__(self.reader, key)

    def batch(self, index: torch.Tensor) -> tuple[Any, Any]:
        """The first samples, as many as are asked for."""
        return self.prepared(self.sample((0, tuple(range(len(index))))))
