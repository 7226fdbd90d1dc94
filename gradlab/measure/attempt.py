"""An update under way: its measurements travel to the host while the next one runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from gradlab.update.recorder import Recorder
from gradlab.update.step import MicroBatch, Stats

FIELDS = ("loss", "grad_norm", "clip_coefficient", "clip_acted", "scale", "next_scale", "skipped", "lr", "applied")


def pack(stats: Stats) -> torch.Tensor:
    """(9,) float64, FIELDS: everything that a line of metrics needs, for one transfer."""
    return torch.stack([getattr(stats, name) for name in FIELDS])


class Measured(Protocol):
    """Numbers of an update that are on the host, or on their way."""

    def read(self) -> list[float]: ...


class HostCopy:
    """A small tensor on its way to the host. On CUDA the copy is queued at once, and `read` waits for nothing later."""

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


@dataclass
class Attempt:
    """One update: where in the data it began, what was drawn and scaled with then, and what it measured."""

    epoch: int
    cursor: int
    steps: int
    samples: int
    random: dict[str, Any]
    precision: dict[str, torch.Tensor]
    """State of the loss scale that it used."""
    measured: Measured
    record: Recorder
    """What is recorded of every layer."""
    layers: Measured | None
    """The record on its way, where there is one."""
    impact: dict[str, float] = field(default_factory=dict)
    """Metrics of a pitfall, where they were measured."""
    batches: list[MicroBatch] = field(default_factory=list)
    """This rank's window as the update saw it: a data set need not give the same samples twice."""
