"""Gradients that the loop sums over ranks itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradlab.watch.call_site import call_site
from gradlab.watch.instrumentation import Instrumentation
from gradlab.watch.loop_state import LoopState
from gradlab.watch.rules import calls


class AllReduceObserver:
    """Observes `torch.distributed.all_reduce`."""

    def __init__(self, loop: LoopState) -> None:
        self.loop = loop

    def install(self, instrumentation: Instrumentation) -> None:
        instrumentation.patch(torch.distributed, "all_reduce", self.on_all_reduce)

    def on_all_reduce(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = args[0] if args else kwargs.get("tensor")
        if not isinstance(given, Tensor) or self.loop.world_size < 2:
            return
        storage = given.untyped_storage().data_ptr()
        for tracker in self.loop.trackers:
            if any(p.grad is not None and p.grad.untyped_storage().data_ptr() == storage for p in tracker.params):
                tracker.writes.reduced = True
                self.loop.add_violations(tracker, calls.at_all_reduce(tracker, call_site()))
