"""Forward passes of the models: who called them, and in what precision."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from gradlab.watch import unseen
from gradlab.watch.listening import Listening
from gradlab.watch.loop import Loop
from gradlab.watch.taps import owner_of
from gradlab.watch.where import site

LOOKED_UP = 3
"""Backward passes before which it is looked up where forward passes are called."""


class Forward:
    """Counts them in `loop.passes`."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.wrapped = False
        """Whether DDP's own forward pass is under way."""

    def listen(self, to: Listening) -> None:
        for m in self.loop.models:
            if getattr(m, "_compiled_call_impl", None) is None:
                to.hook(m.register_forward_pre_hook, self.before, m)
        if (ddp := self.loop.ddp) is not None:
            to.hook(ddp.register_forward_hook, self.after_wrapper, ddp, always_call=True)
            to.hook(ddp.module.register_forward_pre_hook, self.before_inner, ddp.module)
            to.tap(owner_of(ddp, "no_sync"), "no_sync", self.on_no_sync)

    def before(self, module: nn.Module, *_: Any) -> None:
        loop = self.loop
        if loop.depth or not torch.is_grad_enabled():
            return
        if loop.gathers and not loop.passes.count:
            for f in loop.followers:
                unseen.catch_up(loop, f)
                f.look()
        passes, device = loop.passes, next((f.params[0].device.type for f in loop.followers), "cpu")
        passes.count += 1
        passes.half = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) is torch.float16
        passes.synced = loop.ddp.require_backward_grad_sync if loop.ddp is not None else None
        passes.site = site() if loop.backwards < LOOKED_UP else None
        self.wrapped = module is loop.ddp

    def after_wrapper(self, *_: Any) -> None:
        self.wrapped = False

    def before_inner(self, *_: Any) -> None:
        """The module inside of DDP runs: is it DDP that calls it?"""
        if not self.wrapped and not self.loop.depth and torch.is_grad_enabled():
            self.loop.passes.raw = site()

    def on_no_sync(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if args and args[0] is self.loop.ddp:
            self.loop.no_sync = site()
