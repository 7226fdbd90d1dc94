"""Steps of optimizers: what their gradients hold is judged and measured, and an update is over."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradlab.watch import rules
from gradlab.watch.events import Backward
from gradlab.watch.follower import Follower
from gradlab.watch.listening import Listening
from gradlab.watch.loop import Loop
from gradlab.watch.taps import owner_of
from gradlab.watch.where import Site, site

HOOKS = torch.optim.Optimizer.profile_hook_step.__code__.co_filename
"""Whose frames run the hooks of a step."""
LOOK = 5
"""Updates between two looks at which parameters are trained."""


class Stepping:
    """Hangs on each followed optimizer."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop

    def listen(self, to: Listening) -> None:
        def follow(f: Follower) -> None:
            to.hook(f.optimizer.register_step_pre_hook, self.of(self.before, f), f.optimizer, leads=True)
            to.hook(f.optimizer.register_step_post_hook, self.of(self.after, f), f.optimizer)
            to.tap(owner_of(f.optimizer, "add_param_group"), "add_param_group", self.on_group)

        for f in self.loop.followers:
            follow(f)
        self.loop.followed = [follow]

    def scaler(self, f: Follower) -> bool | None:
        return self.loop.scale.scaling is f if self.loop.scale.on else None

    @staticmethod
    def of(what: Callable[..., None], f: Follower) -> Callable[..., None]:
        return lambda *args: what(f, *args)

    def on_group(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[Any, bool], None] | None:
        f = next((f for f in self.loop.followers if f.optimizer is args[0]), None)
        return None if f is None else lambda result, error: self.loop.grown(f)

    def before(self, f: Follower, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if f.trying and within(optimizer):
            f.inner += 1
            return
        f.inner = 0
        f.closure = any(callable(a) for a in args[1:]) or callable(kwargs.get("closure"))
        f.look()
        self.loop.outputs[f.index].numbers.finish(self.loop.scale.now())
        f.trying = f.hooked = True
        f.stepping, f.inside = f.closure, []
        if not f.closure:
            measured(self.loop, f, site(), self.scaler(f))

    def after(self, f: Follower, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if f.inner:
            f.inner -= 1
            return
        if f.closure:
            f.look()
            measured(self.loop, f, site(), self.scaler(f))
        f.stepping = f.trying = False
        scaled = self.loop.scale.scaling is f
        held_back = getattr(optimizer, "found_inf", None) if scaled else None  # a fused one decides in its kernel
        attempted(self.loop, f, held_back.clone() if isinstance(held_back, Tensor) else False)


def within(optimizer: Any) -> bool:
    """Whether one step of an optimizer calls another: a class whose step calls its base's runs all hooks twice."""
    frame, times = sys._getframe(2), 0
    while frame is not None:
        times += frame.f_code.co_filename == HOOKS and frame.f_locals.get("self") is optimizer
        frame = frame.f_back  # type: ignore[assignment]
    return times > 1


def measured(loop: Loop, f: Follower, where: Site | None, scaler: bool | None, moves: bool = True) -> None:
    """Judge and measure what an optimizer is to step on. scaler: whether it is the one to step; None: there is none."""
    numbers = loop.outputs[f.index].numbers
    ranks = loop.ranks if loop.ddp is not None else 1
    loop.found(f, rules.at_step(f, where, scaler, ranks, loop.no_sync))
    if scaler and not loop.half and (f.attempts or len(loop.followers) == 1):  # another's may be in fp16
        loop.found(f, rules.needless_scale(f.new))
    fused = getattr(f.optimizer, "grad_scale", None)
    numbers.measure(fused if isinstance(fused, Tensor) else loop.scale.within(f), moves=moves and not f.closure)
    if "clip/after" in numbers.clipping:
        numbers.clipping = {"clip/after": numbers.gradients().total}


def attempted(loop: Loop, f: Follower, skipped: Any) -> None:
    """An update was tried, or given up."""
    lr = f.optimizer.param_groups[0]["lr"]
    if isinstance(lr, Tensor):
        lr = lr.detach().clone()
    numbers = loop.outputs[f.index].numbers
    own = [b for b in f.held if f.index not in b.used]  # another optimizer may have stepped on the same loss
    loss = f.inside[0].loss if len(f.inside) > 1 else total_loss(own)
    if loop.running is not None and not f.held:  # a hook on the parameters steps, in the backward pass itself
        loss = loop.running.loss
    if numbers.norm is not None:
        numbers.stepped(loss, lr, skipped)
    f.attempts += 1
    f.stepped()
    if f.attempts % LOOK == 0 and f.changed():
        loop.grown(f)


def total_loss(backwards: list[Backward]) -> Any:
    """The sum of what backward was called on; None where one of them is not known."""
    losses = [b.loss for b in backwards]
    return None if not losses or any(v is None for v in losses) else sum(losses[1:], losses[0])
