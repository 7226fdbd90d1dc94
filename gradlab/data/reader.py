"""Reading batches of a map-style data set, here or in a worker: what a sample draws depends on its place and epoch."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gradlab.base.randomness import generators_restored, mix, numbers_of_each, seed_cpu
from gradlab.base.visible import listed
from gradlab.data.tree import leaves, mapped

Key = tuple[int, tuple[int, ...]]
"""Epoch, and the places of a batch's samples."""


@dataclass(frozen=True)
class Unreadable:
    """What went wrong in reading a batch."""

    why: str


@dataclass
class Reader:
    """A data set of batches by their keys, for PyTorch's DataLoader."""

    dataset: Any
    collate: Callable[[list[Any]], Any]
    seed: int = 0
    draws: bool = field(default=False, init=False)
    """Whether samples draw random numbers: seeding each would take longer than reading most that do not."""
    undrawn: Any = field(default=None, init=False, repr=False)
    """What the generators return next after a reading that drew nothing."""

    def __getitem__(self, key: Key) -> tuple[Key, Any]:
        """The batch, or an `Unreadable`: an exception would arrive from another process as its traceback."""
        with generators_restored():  # once for all samples: it takes longer than most of them
            if self.draws:
                return key, self.read(*key)
            first = self.undrawn is None
            if first:
                seed_cpu(0)
                self.undrawn = numbers_of_each()
                seed_cpu(1)
                other = self.read(*key)
            seed_cpu(0)
            found = self.read(*key)
            # A sample may also ask for the seed, for a generator of its own, and move none of those here.
            self.draws = numbers_of_each() != self.undrawn or (first and not alike(found, other))
            return key, self.read(*key) if self.draws else found

    def read(self, epoch: int, places: tuple[int, ...]) -> Any:
        doing = "the batch"
        try:
            samples = []
            for place in places:
                doing = f"sample {place}"
                if self.draws:
                    seed_cpu(mix(self.seed, epoch, place))
                samples.append(self.dataset[place])
            doing = f"collating the samples {listed(places, 4)}"
            if self.draws:
                seed_cpu(mix(self.seed, epoch, *places))
            return mapped(single, self.collate(samples))
        except Exception as error:
            return Unreadable(f"{doing} raises {type(error).__name__}: {' '.join(str(error).split())[:300]}")


def single(tensor: torch.Tensor) -> torch.Tensor:
    """NumPy's numbers are of double precision, which no model expects."""
    return tensor.float() if tensor.dtype == torch.float64 else tensor


def stacked(samples: Sequence[Any]) -> Any:
    """PyTorch's own collate function, of samples whose lists of numbers are tensors."""
    alone = all(map(numbers_alone, samples))  # collated as they are, in a third of the time
    return torch.utils.data.default_collate([sample if alone else tensors(sample) for sample in samples])


def numbers_alone(sample: Any) -> bool:
    """Whether a sample has neither arrays nor lists of numbers."""
    if isinstance(sample, Mapping):
        return all(map(numbers_alone, sample.values()))
    if isinstance(sample, tuple):
        return all(map(numbers_alone, sample))
    return isinstance(sample, torch.Tensor | int | float)


def tensors(value: Any) -> Any:
    """A sample with tensors for arrays and lists of numbers."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, tuple):
        return tuple([tensors(inner) for inner in value])
    if isinstance(value, Mapping):
        return {name: tensors(inner) for name, inner in value.items()}
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        return value


def alike(a: Any, b: Any) -> bool:
    """Whether two readings gave the same."""
    x, y = list(leaves(tensors(a))), list(leaves(tensors(b)))
    return len(x) == len(y) and all(
        p.shape == q.shape and torch.equal(p.nan_to_num(), q.nan_to_num()) for p, q in zip(x, y, strict=True)
    )


def leave_signals(worker: int) -> None:
    """In a worker: Ctrl-C reaches it too, but only the run decides when it ends; and it is ended by SIGTERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
