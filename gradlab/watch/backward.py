"""Backward passes: what they were called on, and to whose gradients they added."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gradlab.watch import rules, unseen
from gradlab.watch.events import Backward
from gradlab.watch.follower import Follower
from gradlab.watch.graph import Weight, token
from gradlab.watch.listening import Listening
from gradlab.watch.loop import Loop, Passes
from gradlab.watch.precisions import Precisions, compiled_anew
from gradlab.watch.taps import After
from gradlab.watch.where import site


class Backwards:
    """Listens to `torch.autograd.backward`, which every tensor's calls."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.precisions = Precisions()

    def listen(self, to: Listening) -> None:
        to.tap(torch.autograd, "backward", self.on_backward)

    def on_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> After | None:
        """Checkpointing calls it within itself."""
        loop = self.loop
        loop.depth += 1
        loop.backwards += loop.depth == 1
        if loop.depth > 1 or not loop.followers:
            return self.ended
        for f, output in zip(loop.followers, loop.outputs, strict=True):
            if not f.stepping:
                unseen.catch_up(loop, f)
                output.numbers.finish(loop.scale.now())
                if f.trying:  # its step has raised
                    output.numbers.begin()
                    f.trying = False
            if loop.gathers:
                f.settle()
            else:
                f.look()
        b, in_autocast = self.seen(args[0] if args else kwargs.get("tensors"))
        passes, loop.passes, loop.running = loop.passes, Passes(), b

        def after(result: Any, error: bool) -> None:
            loop.depth, loop.running = loop.depth - 1, None
            if isinstance(b.loss, Tensor) and b.loss.device.type == "cpu":
                b.loss = b.loss.item()
            for f in loop.followers:
                now = f.versions()
                if now == f.mark:
                    continue
                f.mark, b.versions[f.index] = now, f.version
                if not error:
                    self.judge(f, b, passes, in_autocast)
                self.take(f, b, error)

        return after

    def ended(self, result: Any, error: bool) -> None:
        self.loop.depth -= 1

    def seen(self, tensors: Any) -> tuple[Backward, bool]:
        """A pass that is about to run, and whether autocast is on."""
        loop, passes = self.loop, self.loop.passes
        roots = [tensors] if isinstance(tensors, Tensor) else list(tensors) if tensors is not None else []
        where = site()
        loss, weight, scaled = loop.scale.weighed(roots[0]) if len(roots) == 1 else (None, Weight(), False)
        first = roots[0] if roots else loop.followers[0].params[0]
        types = self.precisions.of(where, roots)
        b = Backward(
            where,
            loss,
            weight,
            scaled,
            passes.half or (types is not None and torch.float16 in types),
            passes.count or int(compiled_anew(roots)),
            passes.site,
            loop.ddp.require_backward_grad_sync if loop.ddp is not None else None,
            loop.scale.updates,
            types,
            token(first),
        )
        loop.half |= b.half
        return b, torch.is_autocast_enabled(first.device.type)

    def take(self, f: Follower, b: Backward, error: bool) -> None:
        output = self.loop.outputs[f.index]
        output.half |= b.half
        f.held.append(b)
        f.backwards += 1
        f.keep()
        f.state = unseen.state(f)
        if f.stepping:
            f.inside.append(b)
            if len(f.inside) == 1 and not error:  # before it is clipped, or the weights move
                output.numbers.measure(self.loop.scale.within(f))

    def judge(self, f: Follower, b: Backward, passes: Passes, in_autocast: bool) -> None:
        loop = self.loop
        if f.unscaled and b.scaled and f.held and len(f.new) == len(f.held):
            norm = loop.outputs[f.index].numbers.norm
            lost = f.locked = norm is not None and not math.isfinite(float(norm))
            loop.fault("live-lock" if lost else "unscale-every-micro-batch", b.site if lost else f.unscaled_site, f)
        loop.found(f, rules.at_backward(f, b, in_autocast))
        if passes.raw and b.forwards == 0:
            loop.fault("raw-module-called", passes.raw, f)
        if loop.ranks > 1 and passes.synced and b.synced is False:
            loop.fault("no-sync-around-backward-only", loop.no_sync or b.site, f)
