"""The time of forward and backward passes, without waiting for the device."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Passes:
    """Timestamps of an update: before it, around each forward pass, and after it."""

    def __init__(self, model: torch.nn.Module, device: torch.device) -> None:
        self.model, self.cuda = model, device.type == "cuda"
        self.moments: list[Any] = []

    def mark(self, *_: Any) -> None:
        """Take a timestamp; on CUDA an event, which is read later."""
        if not self.cuda:
            self.moments.append(time.perf_counter())
            return
        self.moments.append(torch.cuda.Event(enable_timing=True))
        self.moments[-1].record()

    @contextmanager
    def timing(self) -> Iterator[None]:
        before = self.model.register_forward_pre_hook(self.mark)
        after = self.model.register_forward_hook(self.mark)
        self.mark()
        try:
            yield
            self.mark()
        finally:
            before.remove()
            after.remove()

    def seconds(self) -> dict[str, float]:
        """Time of all forward passes of the update, and of the rest: loss functions and backward passes."""
        first, *between, last = self.moments
        forward = sum(self.elapsed(a, b) for a, b in zip(between[::2], between[1::2], strict=True))
        return {"time/forward": forward, "time/backward": self.elapsed(first, last) - forward}

    def elapsed(self, a: Any, b: Any) -> float:
        seconds: float = a.elapsed_time(b) / 1e3 if self.cuda else b - a
        return seconds
