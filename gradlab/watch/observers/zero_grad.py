"""Gradients that are set to zero or None."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from gradlab.watch.call_site import CallSite
from gradlab.watch.instrumentation import Instrumentation
from gradlab.watch.loop_state import LoopState
from gradlab.watch.observers import compiled_steps
from gradlab.watch.order_sites import order_site
from gradlab.watch.patches import AfterCall, defining_class
from gradlab.watch.rules import accumulation, reach
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker
from gradlab.watch.updates import after_step, total_loss


class ZeroGradObserver:
    """Observes `zero_grad` of optimizers and of modules."""

    def __init__(self, loop: LoopState) -> None:
        self.loop = loop

    def install(self, instrumentation: Instrumentation) -> None:
        instrumentation.patch(torch.optim.Optimizer, "zero_grad", self.on_optimizer)
        for tracker in self.loop.trackers:
            owner = defining_class(tracker.optimizer, "zero_grad")
            instrumentation.patch(owner, "zero_grad", self.on_optimizer)
        instrumentation.patch(nn.Module, "zero_grad", self.on_module)

    def on_optimizer(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AfterCall | None:
        trackers = [t for t in self.loop.trackers if args and t.optimizer is args[0]]
        return self.zero_grad(trackers) if trackers else None

    def on_module(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AfterCall | None:
        """Of any module: which gradients it zeroes is known afterwards."""
        return self.zero_grad(self.loop.trackers)

    def zero_grad(self, trackers: list[OptimizerTracker]) -> AfterCall:
        site = order_site()
        for tracker in trackers:
            compiled_steps.detect(self.loop, tracker)
            if tracker.unused or tracker.writes.by_value:  # else what was written is zeroed
                tracker.detect_writes()
            if tracker.others.clips:
                for other, violation in reach.clipped_in_place_of(tracker, self.loop.trackers):
                    self.loop.add_violations(other, [violation])
            if tracker.unused and not tracker.closure.running:
                self.before_drop(tracker, site)

        def after(result: Any, error: bool) -> None:
            for tracker in trackers:
                now = tracker.versions()
                if is_partial(tracker.seen_versions, now):
                    self.loop.outputs[tracker.index].metrics.zeroing = {}
                    tracker.left.note(tracker.params)
                elif now != tracker.seen_versions or not tracker.accumulated:
                    tracker.zeroed(site)
                tracker.seen_versions = now

        return after

    def before_drop(self, tracker: OptimizerTracker, site: CallSite | None) -> None:
        """Gradients that no optimizer has used are about to be zeroed: is it because they are not finite?"""
        loop, metrics, unused = self.loop, self.loop.outputs[tracker.index].metrics, tracker.unused
        if not all(tracker.unmoved_since(b) for b in unused):
            return
        metrics.measure(loop.scaler.in_gradients(tracker))
        norm, total = float(metrics.norm), total_loss([b.loss for b in unused])
        if math.isfinite(norm) and (total is None or math.isfinite(float(total))):
            loop.add_violations(tracker, accumulation.at_drop(tracker, site))
            metrics.note_zeroing(site)
            metrics.start_update()
            return
        no_update = all(b.scaled and b.num_scaler_updates == loop.scaler.num_updates for b in unused)
        if loop.scaler.enabled and no_update and tracker.scaling.stage != "stepped":
            tracker.scaling.overflow_abandoned = True
            loop.add_fault("live-lock", tracker.skip_site or site, tracker)
        after_step(loop, tracker, True)


def is_partial(before: list[int], now: list[int]) -> bool:
    """Whether some gradients were set to None, as those of a part of the model, and others are what they were."""
    if now.count(-1) in (0, len(now)):
        return False
    pairs = list(zip(before, now, strict=True))
    return any(new == -1 != old for old, new in pairs) and any(new == old != -1 for old, new in pairs)
