"""Optimizers that were not handed over: those that train the models are followed from where they are met."""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from gradlab.watch.listening import Listening
from gradlab.watch.loop import Loop
from gradlab.watch.parts import bare
from gradlab.watch.taps import After
from gradlab.watch.where import site, told


class Meeting:
    """Where nobody has named one: those that there are, and those that are made, cleared or stepped later on."""

    def __init__(self, loop: Loop, wanted: bool) -> None:
        self.loop, self.wanted = loop, wanted
        self.met: dict[int, Any] = {}

    def listen(self, to: Listening) -> None:
        if self.wanted:
            gc.collect()  # those of an earlier run, which nobody holds any more
            for thing in gc.get_objects():
                if issubclass(type(thing), torch.optim.Optimizer) and hasattr(thing, "param_groups"):
                    self.meet(thing)
            to.tap(torch.optim.Optimizer, "__init__", self.on_init)
            to.tap(torch.optim.Optimizer, "zero_grad", self.on_zero_grad)
            to.hook(register_optimizer_step_pre_hook, lambda optimizer, *_: self.meet(optimizer))
        else:
            to.hook(register_optimizer_step_pre_hook, lambda optimizer, *_: self.notice(optimizer))

    def notice(self, optimizer: Any) -> None:
        """One that was not named steps: does it move what a named one does?"""
        if id(optimizer) in self.met:
            return
        self.met[id(optimizer)] = optimizer
        inner = bare(optimizer)
        if any(f.optimizer is inner for f in self.loop.followers):
            return
        for f in self.loop.followers:
            if any(id(p) in f.ids for group in optimizer.param_groups for p in group["params"]):
                name = type(optimizer).__name__
                f.others.append(f"{name} at {told(site())}")

    def on_init(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> After:
        return lambda result, error: None if error else self.meet(args[0])

    def on_zero_grad(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.meet(args[0])

    def meet(self, optimizer: Any) -> None:
        if any(f.optimizer is optimizer for f in self.loop.followers) or bare(optimizer) is not optimizer:
            return
        ours = self.loop.names()
        if any(p in ours and p.requires_grad for group in optimizer.param_groups for p in group["params"]):
            self.loop.follow(optimizer)
