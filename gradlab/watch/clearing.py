"""Gradients set to zero, or to None."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from gradlab.watch import unseen, windows
from gradlab.watch.follower import Follower
from gradlab.watch.listening import Listening
from gradlab.watch.loop import Loop
from gradlab.watch.stepping import attempted, total_loss
from gradlab.watch.taps import After, owner_of
from gradlab.watch.where import Site, site


class Clearing:
    """Listens to `zero_grad` of optimizers and of modules."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop

    def listen(self, to: Listening) -> None:
        to.tap(torch.optim.Optimizer, "zero_grad", self.on_zero_grad)
        for f in self.loop.followers:
            to.tap(owner_of(f.optimizer, "zero_grad"), "zero_grad", self.on_zero_grad)
        to.tap(nn.Module, "zero_grad", self.on_module)

    def on_zero_grad(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> After | None:
        told = [f for f in self.loop.followers if args and f.optimizer is args[0]]
        return self.clearing(told) if told else None

    def on_module(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> After | None:
        """Of any module: which gradients it clears is seen afterwards."""
        return self.clearing(self.loop.followers)

    def clearing(self, told: list[Follower]) -> After:
        where = site()
        for f in told:
            unseen.catch_up(self.loop, f)
            f.look()
            if f.new and not f.stepping:
                self.dropping(f, where)

        def after(result: Any, error: bool) -> None:
            for f in told:
                now = f.versions()
                if now != f.mark or not f.held:
                    f.clear(where)
                    f.mark = now

        return after

    def dropping(self, f: Follower, where: Site | None) -> None:
        """Gradients that no optimizer has used are about to be cleared: was it since they are not finite?"""
        loop, output, new = self.loop, self.loop.outputs[f.index], f.new
        if not all(f.unmoved(b) for b in new):
            return
        output.numbers.measure(loop.scale.within(f))
        norm, total = float(output.numbers.norm), total_loss(new)
        if math.isfinite(norm) and (total is None or math.isfinite(float(total))):
            loop.found(f, windows.at_drop(f, where))
            output.numbers.begin()
            return
        locked = all(b.scaled and b.scaler_updates == loop.scale.updates for b in new) and f.stage != "stepped"
        if loop.scale.on and locked:
            f.locked = True
            loop.fault("live-lock", where, f)
        attempted(loop, f, True)
