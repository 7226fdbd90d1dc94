"""Calls of a GradScaler. One that is not handed over is taken on when it is met."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradlab.watch import rules
from gradlab.watch.follower import Follower
from gradlab.watch.graph import weigh
from gradlab.watch.listening import Listening
from gradlab.watch.loop import Loop
from gradlab.watch.parts import bare
from gradlab.watch.stepping import attempted, measured
from gradlab.watch.taps import After, owner_of
from gradlab.watch.where import site


class Scaling:
    """Follows what the scaler thinks of each optimizer: ready, unscaled or stepped."""

    def __init__(self, loop: Loop) -> None:
        self.loop, self.scale = loop, loop.scale

    def listen(self, to: Listening) -> None:
        scaler = self.scale.scaler
        for name, what in (
            ("scale", self.on_scale),
            ("unscale_", self.on_unscale),
            ("step", self.on_step),
            ("update", self.on_update),
        ):
            to.tap(torch.amp.GradScaler if scaler is None else owner_of(scaler, name), name, what)

    def mine(self, scaler: Any) -> bool:
        if self.scale.scaler is None and scaler.is_enabled():
            self.scale.scaler = scaler
        return scaler is self.scale.scaler and self.scale.on

    def on_scale(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> After | None:
        given = args[1] if len(args) > 1 else kwargs.get("outputs")
        if not isinstance(given, Tensor) or not self.mine(args[0]):
            return None
        self.scale.calls += 1
        weight = weigh(given, self.scale.tensor)
        if (weight.scaled or self.scale.known(given)) and self.loop.followers:
            self.loop.fault("loss-scaled-twice", site(), self.loop.followers[0])

        def after(result: Any, error: bool) -> None:
            if not error:
                self.scale.keep(result, given, weight)

        return after

    def on_unscale(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> After | None:
        f = self.whose(args, kwargs)
        if f is None:
            return None
        f.look()
        where = site()
        self.loop.found(f, rules.at_unscale(f, where))

        def after(result: Any, error: bool) -> None:
            if not error:
                f.stage, f.unscaled, f.unscaled_at, f.unscaled_site = "unscaled", True, len(f.held), where
            f.settle()

        return after

    def on_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> After | None:
        f = self.whose(args, kwargs)
        if f is None:
            return None
        loop, where = self.loop, site()
        if f.stage == "stepped":
            loop.fault("update-missing", f.stepped_site, f)
        if f.new and f.scale_calls == self.scale.calls:
            loop.fault("loss-not-scaled", f.new[0].site, f)
        f.scale_calls = self.scale.calls
        self.scale.scaling, before = f, f.attempts

        def after(result: Any, error: bool) -> None:
            self.scale.scaling = None
            if error:
                loop.found(f, rules.cleared(f, where))  # PyTorch's own words for it are hard to understand
                return
            f.stage, f.stepped_site = "stepped", where
            if f.attempts == before:  # the optimizer was not called
                loop.outputs[f.index].numbers.finish(self.scale.now())
                measured(loop, f, where, True)
                attempted(loop, f, True)

        return after

    def on_update(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> After | None:
        if not self.mine(args[0]):
            return None
        followers, where = self.loop.followers, site()
        early = [f for f in followers if f.new and all(b.scaled for b in f.new)]
        if any(f.stage == "stepped" for f in followers):
            early = []
        for f in early:
            f.updated_site = where

        def after(result: Any, error: bool) -> None:
            self.scale.updates += 1
            for f in followers:
                f.stage, f.locked = "ready", False
            for f in early if error else ():  # PyTorch refuses it
                self.loop.fault("update-every-micro-batch", where, f)

        return after

    def whose(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Follower | None:
        given = bare(args[1] if len(args) > 1 else kwargs.get("optimizer"))
        if not self.mine(args[0]):
            return None
        return next((f for f in self.loop.followers if f.optimizer is given), None)
