"""An update whose measurements are being copied to the host while the next one runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from gradlab.update.recorder import Recorder
from gradlab.update.stats import MicroBatch, Stats

FIELDS = (
    "loss",
    "grad_norm",
    "clip_coefficient",
    "clip_acted",
    "scale",
    "next_scale",
    "skipped",
    "empty",
    "lr",
    "applied",
)


def pack(stats: Stats) -> torch.Tensor:
    """(10 + K,) float64, FIELDS and the terms: everything that a line of metrics needs, for one transfer."""
    fields = torch.stack([getattr(stats, name) for name in FIELDS])
    return fields if stats.terms is None else torch.cat([fields, stats.terms])


class Measured(Protocol):
    """Numbers of an update that are on the host, or being copied there."""

    def read(self) -> list[float]: ...


class HostCopy:
    """A small tensor being copied to the host. On CUDA the copy is asynchronous; `read` waits for it alone."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.event = None
        if tensor.is_cuda:
            pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self.tensor = pinned.copy_(tensor, non_blocking=True)
            self.event = torch.cuda.Event()
            self.event.record()
        else:
            self.tensor = tensor

    def read(self) -> list[float]:
        if self.event is not None:
            self.event.synchronize()
        return self.tensor.tolist()


def flags(each: list[torch.Tensor]) -> list[bool]:
    """Whether each of some () tensors is true, in one transfer."""
    return torch.stack([flag.to(each[0].device) for flag in each]).tolist() if each else []


@dataclass
class Attempt:
    """One update: its position in the data, random state and loss scale before it, and its measurements."""

    epoch: int
    cursor: int
    steps: int
    samples: int
    random: dict[str, Any]
    precision: dict[str, torch.Tensor]
    """State of the loss scale before the update."""
    measured: Measured
    record: Recorder
    """What is recorded of every layer."""
    layers: Measured | None
    """The packed record being copied, where there is one."""
    impact: dict[str, float] = field(default_factory=dict)
    """Metrics of a pitfall, if measured in this update."""
    batches: list[MicroBatch] = field(default_factory=list)
    """This rank's window, kept because a data set need not return the same samples twice."""
