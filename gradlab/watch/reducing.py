"""Gradients that are summed over ranks by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradlab.watch import rules
from gradlab.watch.listening import Listening
from gradlab.watch.loop import Loop
from gradlab.watch.where import site


class Reducing:
    """Listens to `torch.distributed.all_reduce`."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop

    def listen(self, to: Listening) -> None:
        to.tap(torch.distributed, "all_reduce", self.on_reduce)

    def on_reduce(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = args[0] if args else kwargs.get("tensor")
        if not isinstance(given, Tensor) or self.loop.ranks < 2:
            return
        where = given.untyped_storage().data_ptr()
        for f in self.loop.followers:
            if any(p.grad is not None and p.grad.untyped_storage().data_ptr() == where for p in f.params):
                f.reduced = True
                self.loop.found(f, rules.at_reduce(f, site()))
