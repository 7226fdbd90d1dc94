"""Calls that clip. `from torch.nn.utils import clip_grad_norm_` keeps the function itself: what it calls is heard."""

from __future__ import annotations

import re
import sys
from typing import Any

import torch
from torch import Tensor

from gradlab.watch import rules, unseen
from gradlab.watch.events import Clip
from gradlab.watch.follower import Follower
from gradlab.watch.listening import Listening
from gradlab.watch.loop import Loop
from gradlab.watch.taps import After, owner_of
from gradlab.watch.where import site

CLIP = torch.nn.utils.clip_grad


class Clipping:
    """Hands every call to the rules, and its norm to the numbers."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.euclidean = True
        """Whether the latest norm that was asked for is the L2 norm."""
        self.passing: tuple[float, Any] | None = None
        """Bound and norm of a call under way, whose parameters can be gone through only once."""
        self.told: list[Follower] = []
        self.within = False
        """Whether a model's own method is at it."""
        self.resnet = any(re.search("resnet", type(part).__name__, re.I) for m in loop.models for part in m.modules())

    def listen(self, to: Listening) -> None:
        for owner, norm, scale in (
            (CLIP, "_get_total_norm", "_clip_grads_with_norm_"),
            (torch.nn.utils, "get_total_norm", "clip_grads_with_norm_"),
        ):
            to.tap(owner, norm, self.on_total_norm)
            to.tap(owner, scale, self.on_clip_norm)
        for m in self.loop.models:  # FullyShardedDataParallel's
            to.tap(owner_of(m, "clip_grad_norm_"), "clip_grad_norm_", self.on_model)
        to.tap(CLIP, "_group_tensors_by_device_and_dtype", self.on_group)

    def on_total_norm(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.euclidean = float(args[1] if len(args) > 1 else kwargs.get("norm_type", 2.0)) == 2

    def on_model(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> After | None:
        """A model clips itself, max_norm, norm_type: by the norm over all ranks, which it returns."""
        given = dict(zip(("max_norm", "norm_type"), args[1:], strict=False)) | kwargs
        bound, told = float(given["max_norm"]), self.whose(list(args[0].parameters()))
        if bound != torch.inf:
            self.clipping([p for f in told for p in f.params], bound, None)
        self.within = True

        def after(result: Any, error: bool) -> None:
            self.within = False
            for f in told:
                numbers = self.loop.outputs[f.index].numbers
                if not error and len(told) == 1 and float(given.get("norm_type", 2)) == 2:
                    numbers.of_all(result, None if bound == torch.inf else bound)
                f.settle()

        return after

    def on_clip_norm(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> After | None:
        """parameters, max_norm, total_norm: what both `clip_grad_norm_` and `clip_grads_with_norm_` end with."""
        if self.within:
            return None
        given = dict(zip(("parameters", "max_norm", "total_norm"), args, strict=False)) | kwargs
        params, bound, total = given["parameters"], float(given["max_norm"]), given["total_norm"]
        params = [params] if isinstance(params, Tensor) else params
        if not isinstance(params, list):
            self.passing, self.told = (bound, total), []
            return self.passed
        if bound == torch.inf:  # it is measured, and multiplied by 1
            told = self.whose(params)
            for f in told:
                f.look()
            return settling(told)
        return self.clipping(params, bound, total)

    def passed(self, result: Any, error: bool) -> None:
        """A call is over that was known by its gradients, if there were any."""
        if self.passing is not None and len(self.loop.followers) == 1 and not error:
            self.clipping(self.loop.followers[0].params, self.passing[0], None)
        for f in self.told:
            f.settle()
        self.passing = None

    def on_group(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> After | None:
        """`clip_grad_value_` has no parts of its own: it is known by who asks for its gradients to be sorted."""
        if self.passing is not None:
            (bound, total), self.passing = self.passing, None
            known = self.having(args[0][0])
            self.told = self.whose(known)
            if bound != torch.inf:
                self.clipping(known, bound, total)
            return None
        caller = sys._getframe(1)
        while caller.f_code.co_filename != CLIP.__file__:
            if caller.f_back is None:
                return None
            caller = caller.f_back
        if caller.f_code.co_name != "clip_grad_value_":
            return None
        known = self.having(args[0][0])
        if not args[0][0] and len(self.loop.followers) == 1:
            known = self.loop.followers[0].params
        self.clipping(known, None, None)
        for f in self.whose(known):
            f.clamped = True
        return None

    def having(self, grads: list[Tensor]) -> list[Tensor]:
        """The followed parameters that have these gradients."""
        ids = {id(g) for g in grads}
        return [p for f in self.loop.followers for p in f.params if p.grad is not None and id(p.grad) in ids]

    def whose(self, params: list[Any]) -> list[Follower]:
        return list({f.index: f for p in params if (f := self.loop.of.get(id(p))) is not None}.values())

    def clipping(self, params: list[Tensor], bound: float | None, total: Any) -> After | None:
        where, loop, told = site(), self.loop, self.whose(params)
        for f in told:
            output = loop.outputs[f.index]
            numbers = output.numbers
            unseen.catch_up(loop, f)
            f.look()
            loop.found(f, rules.at_clip(f, where, loop.scale.on, loop.passes.count))
            if f.new:
                loop.found(f, rules.at_bound(bound, where, self.resnet))
            f.clips.append(Clip(where, len(f.held)))
            output.clips = True
            if not f.new:
                continue
            whole = isinstance(total, Tensor) and not f.spread and not numbers.clipping and covers(f, params)
            numbers.measure(loop.scale.within(f), total if whole and self.euclidean else None)
            if whole and bound is not None:
                numbers.clipping = {"clip/bound": bound, "clip/total": total}
            else:
                numbers.clipping = {"clip/after": None}
        return settling(told)


def settling(told: list[Follower]) -> After:
    """What the call wrote to the gradients was followed."""

    def after(result: Any, error: bool) -> None:
        for f in told:
            f.settle()

    return after


def covers(f: Follower, params: list[Tensor]) -> bool:
    """Whether these are all of an optimizer's parameters, and no others."""
    return len(params) == len(f.params) and all(id(p) in f.ids for p in params)
