"""Orders that the loop draws itself, before the updates of an epoch: what they pick is followed to the next loss."""

from __future__ import annotations

import sys
from typing import Any

import torch

from gradlab.watch.call_site import USER, origin
from gradlab.watch.instrumentation import Instrumentation
from gradlab.watch.loop_state import LoopState
from gradlab.watch.patches import FILE_NAME

FOLLOWED = 2
"""Times that an update is followed from such a call on."""


class ShuffleObserver:
    """Observes `torch.randperm`, as far as it is not called by PyTorch's own samplers."""

    def __init__(self, loop: LoopState) -> None:
        self.loop, self.num_followed = loop, 0

    def install(self, instrumentation: Instrumentation) -> None:
        instrumentation.patch(torch, "randperm", self.on_order)

    def on_order(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        frame: Any = sys._getframe(1)
        while frame.f_code.co_filename != FILE_NAME:
            frame = frame.f_back
        if self.num_followed < FOLLOWED and origin(frame.f_back.f_code.co_filename) == USER:
            self.num_followed += self.loop.follow_order()
