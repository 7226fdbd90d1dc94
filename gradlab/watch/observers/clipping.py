"""Calls that clip gradients.

`from torch.nn.utils import clip_grad_norm_` keeps a reference to the function itself, so that the functions that it
calls are observed.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import torch
from torch import Tensor

from gradlab.watch.call_site import call_site, call_stack
from gradlab.watch.events import ClipCall
from gradlab.watch.instrumentation import Instrumentation
from gradlab.watch.loop_state import LoopState
from gradlab.watch.making_lines import handed_from
from gradlab.watch.observers import compiled_steps
from gradlab.watch.order_sites import order_site
from gradlab.watch.patches import AfterCall, defining_class
from gradlab.watch.rules import calls
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

CLIP = torch.nn.utils.clip_grad
STRAY = "its parameters have no gradient, or one of an earlier step"
MAX_COMPARED = 3
"""Times that gradients are compared with those of an optimizer: reading them waits for the device."""


class ClippingObserver:
    """Applies the rules to every call, and takes the norm that it computes."""

    def __init__(self, loop: LoopState) -> None:
        self.loop = loop
        self.is_l2 = True
        """Whether the latest norm that was computed is the L2 norm."""
        self.iterator_call: tuple[float, Any] | None = None
        """(bound, norm) of a running call whose parameters are an iterator, which must not be consumed."""
        self.iterator_trackers: list[OptimizerTracker] = []
        self.num_compared = 0
        self.latest: tuple[list[int], Any, list[OptimizerTracker]] = ([], None, [])
        """ids of the parameters that were clipped last, the trackers of all by then, and those of these parameters."""
        self.bound: float | None = None
        """The latest bound, if nothing is to be said of it."""
        self.in_model_method = False
        """Whether a model's own `clip_grad_norm_` is running."""
        self.resnet = any(re.search("resnet", type(part).__name__, re.I) for m in loop.models for part in m.modules())

    def install(self, instrumentation: Instrumentation) -> None:
        for owner, norm, scale in (
            (CLIP, "_get_total_norm", "_clip_grads_with_norm_"),
            (torch.nn.utils, "get_total_norm", "clip_grads_with_norm_"),
        ):
            instrumentation.patch(owner, norm, self.on_total_norm)
            instrumentation.patch(owner, scale, self.on_clip_with_norm)
        for m in self.loop.models:  # FullyShardedDataParallel's
            instrumentation.patch(defining_class(m, "clip_grad_norm_"), "clip_grad_norm_", self.on_model_method)
        instrumentation.patch(CLIP, "_group_tensors_by_device_and_dtype", self.on_group)

    def on_total_norm(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.is_l2 = float(args[1] if len(args) > 1 else kwargs.get("norm_type", 2.0)) == 2

    def on_model_method(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AfterCall | None:
        """`model.clip_grad_norm_(max_norm, norm_type)` clips by the norm over all ranks, and returns it."""
        given = dict(zip(("max_norm", "norm_type"), args[1:], strict=False)) | kwargs
        bound, trackers = float(given["max_norm"]), self.trackers_of(list(args[0].parameters()))
        if bound != torch.inf:
            self.clip([p for tracker in trackers for p in tracker.params], bound, None)
        self.in_model_method = True

        def after(result: Any, error: bool) -> None:
            self.in_model_method = False
            for tracker in trackers:
                metrics = self.loop.outputs[tracker.index].metrics
                if not error and len(trackers) == 1 and float(given.get("norm_type", 2)) == 2:
                    metrics.set_global_norm(result, None if bound == torch.inf else bound)
                tracker.accept_writes()

        return after

    def on_clip_with_norm(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AfterCall | None:
        """(parameters, max_norm, total_norm): `clip_grad_norm_` and `clip_grads_with_norm_` both end with this call."""
        if self.in_model_method:
            return None
        given = dict(zip(("parameters", "max_norm", "total_norm"), args, strict=False)) | kwargs
        params, bound, total = given["parameters"], float(given["max_norm"]), given["total_norm"]
        params = [params] if isinstance(params, Tensor) else params
        if not isinstance(params, list):
            self.iterator_call, self.iterator_trackers = (bound, total), []
            return self.after_iterator_call
        if bound == torch.inf:  # the norm is measured, and the gradients are multiplied by 1
            trackers = self.trackers_of(params)
            for tracker in trackers:
                tracker.detect_writes()
            return accepting_writes(trackers)
        return self.clip(params, bound, total)

    def after_iterator_call(self, result: Any, error: bool) -> None:
        """The end of a call that is recognized by its gradients, if there were any."""
        if self.iterator_call is not None and len(self.loop.trackers) == 1 and not error:
            self.clip(self.loop.trackers[0].params, self.iterator_call[0], None)
        for tracker in self.iterator_trackers:
            tracker.accept_writes()
        self.iterator_call = None

    def on_group(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AfterCall | None:
        """`clip_grad_value_` calls no other function of its own: it is recognized as the caller of this one."""
        if self.iterator_call is not None:
            (bound, total), self.iterator_call = self.iterator_call, None
            params = self.params_with(args[0][0])
            self.iterator_trackers = self.trackers_of(params)
            if bound != torch.inf:
                self.clip(params, bound, total)
            return None
        caller = sys._getframe(1)
        while caller.f_code.co_filename != CLIP.__file__:
            if caller.f_back is None:
                return None
            caller = caller.f_back
        if caller.f_code.co_name != "clip_grad_value_":
            return None
        params = self.params_with(args[0][0])
        if not args[0][0] and len(self.loop.trackers) == 1:
            params = self.loop.trackers[0].params
        self.clip(params, None, None)
        for tracker in self.trackers_of(params):
            tracker.writes.by_value = True
        return None

    def params_with(self, grads: list[Tensor]) -> list[Tensor]:
        """The tracked parameters that have these gradients."""
        ids = {id(g) for g in grads}
        return [p for t in self.loop.trackers for p in t.params if p.grad is not None and id(p.grad) in ids]

    def trackers_of(self, params: list[Any]) -> list[OptimizerTracker]:
        ids, known = [*map(id, params)], self.loop.tracker_of
        if ids != self.latest[0] or known is not self.latest[1]:
            found = {tracker.index: tracker for key in ids if (tracker := known.get(key)) is not None}
            self.latest = ids, known, list(found.values())
        return self.latest[2]

    def is_stray(self, params: list[Tensor]) -> bool:
        """Whether there is nothing to clip: no parameters, or without gradients, and of neither models nor optimizers.

        A part of the model may be frozen for a while, and clipped all the same.
        """
        if any(p.grad is not None for p in params):
            return False
        loop = self.loop
        known = {id(p) for m in loop.models for p in m.parameters()}
        known |= {id(p) for t in loop.trackers for group in t.optimizer.param_groups for p in group["params"]}
        return known.isdisjoint(map(id, params))

    def are_copies(self, params: list[Tensor]) -> bool:
        """Whether these have copies of all gradients of an optimizer."""
        for tracker in self.loop.trackers if self.num_compared < MAX_COMPARED else ():
            pairs = list(zip(params, tracker.params, strict=False))
            if tracker.unused and len(params) == len(tracker.params) and all(p.shape == q.shape for p, q in pairs):
                self.num_compared += 1
                grads = [(p.grad, q.grad) for p, q in pairs if q.grad is not None]
                return all(g is not None and g.dtype == h.dtype and torch.equal(g, h) for g, h in grads)
        return False

    def clip(self, params: list[Tensor], bound: float | None, total: Any) -> AfterCall | None:
        """Judge and measure before a call that clips. bound: None if by value. total: the norm it has computed."""
        site, loop, trackers = call_site(), self.loop, self.trackers_of(params)
        meant = handed_from(call_stack()) if not trackers or len(loop.trackers) > 1 else site
        if not trackers and self.is_stray(params):
            loop.seen.stray_clips.append((meant, STRAY))
        elif not trackers and self.are_copies(params):
            loop.seen.stray_clips.append((meant, "its gradients are copies"))
        for tracker in trackers:
            output = loop.outputs[tracker.index]
            metrics = output.metrics
            compiled_steps.detect(loop, tracker)
            tracker.detect_writes()
            unused = tracker.unused
            pending = unused or any(t.unused for t in trackers)  # networks may be clipped together
            others = not pending and any(t.unused for t in loop.trackers)
            if others and tracker.clipped_last:
                loop.seen.stray_clips.append((meant, STRAY))  # it was clipped before its step: another one is meant
            elif unused or not (pending or (others and not tracker.attempts)):  # it may be clipped again
                scaling = loop.scaler.enabled
                if not unused or scaling or tracker.clips:  # else this is the first after a backward pass
                    for name, _, detail, *_since in calls.at_clip(tracker, site, scaling, loop.forwards.count):
                        loop.add_fault(name, order_site(), tracker, detail)
            if unused:
                if bound is None or bound != self.bound:
                    found = list(calls.at_bound(bound, site, self.resnet))
                    self.bound = None if found else bound
                    loop.add_violations(tracker, found)
                if len(params) == 1:
                    loop.add_violations(tracker, calls.at_single(tracker, site))
            tracker.clips.append(ClipCall(site, len(tracker.accumulated), meant))
            tracker.clip_site = site
            output.clips |= bool(tracker.own) or tracker.writes.since_step  # else there is nothing to clip
            output.clips_whole &= bound is not None and len(params) >= len(tracker.params)
            if not unused:
                continue
            first = isinstance(total, Tensor) and not tracker.sharded and not metrics.clipping
            whole = first and are_all_params(tracker, params)
            metrics.measure(loop.scaler.in_gradients(tracker), total if whole and self.is_l2 else None)
            if whole and bound is not None:
                metrics.clipping = {"clip/bound": bound, "clip/total": total}
            else:
                metrics.clipping = {"clip/after": None}
        return accepting_writes(trackers)


def accepting_writes(trackers: list[OptimizerTracker]) -> AfterCall:
    """After a call whose writes to the gradients were observed."""

    def after(result: Any, error: bool) -> None:
        for tracker in trackers:
            tracker.accept_writes()

    return after


def are_all_params(tracker: OptimizerTracker, params: list[Tensor]) -> bool:
    """Whether these are all of an optimizer's parameters, and no others."""
    return len(params) == len(tracker.params) and tracker.ids.issuperset(map(id, params))
