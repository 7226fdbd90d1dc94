"""Calls of a GradScaler. One that was not passed to the watch is followed from its first call."""

from __future__ import annotations

from typing import Any

import torch

from gradlab.watch.arguments import unwrapped
from gradlab.watch.call_site import call_site, call_stack
from gradlab.watch.followed_update import tensors_in
from gradlab.watch.graphs.loss_graph import loss_weight, mark_scaled
from gradlab.watch.instrumentation import Instrumentation
from gradlab.watch.loop_state import LoopState
from gradlab.watch.making_lines import handed_from
from gradlab.watch.patches import AfterCall, defining_class
from gradlab.watch.rules import accumulation, calls
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker
from gradlab.watch.updates import after_step, before_step


class GradScalerObserver:
    """Follows the scaler's stage for each optimizer: ready, unscaled or stepped."""

    def __init__(self, loop: LoopState) -> None:
        self.loop, self.tracker = loop, loop.scaler

    def install(self, instrumentation: Instrumentation) -> None:
        scaler = self.tracker.scaler
        for name, observer in (
            ("scale", self.on_scale),
            ("unscale_", self.on_unscale),
            ("step", self.on_step),
            ("update", self.on_update),
        ):
            owner = torch.amp.GradScaler if scaler is None else defining_class(scaler, name)
            instrumentation.patch(owner, name, observer)

    def is_followed(self, scaler: Any) -> bool:
        if self.tracker.scaler is None and scaler.is_enabled():
            self.tracker.scaler = scaler
        return scaler is self.tracker.scaler and self.tracker.enabled

    def on_scale(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AfterCall | None:
        losses = tensors_in([args[1] if len(args) > 1 else kwargs.get("outputs")])
        if not losses or not self.is_followed(args[0]):
            return None
        self.tracker.num_scale_calls += 1
        weights = [loss_weight(loss, self.tracker.tensor) for loss in losses]
        twice = any(w.num_scales or self.tracker.has_scaled(loss) for w, loss in zip(weights, losses, strict=True))
        if twice and self.loop.trackers:
            self.loop.add_fault("loss-scaled-twice", handed_from(call_stack()), self.loop.trackers[0])

        def after(result: Any, error: bool) -> None:
            for scaled, loss, weight in zip(tensors_in([result]), losses, weights, strict=not error):
                self.tracker.remember(scaled, loss, weight)
                mark_scaled(scaled)
            self.tracker.note_scale()

        return after

    def on_unscale(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AfterCall | None:
        tracker = self.tracker_of(args, kwargs)
        if tracker is None:
            return None
        tracker.detect_writes()
        site = call_site()
        self.loop.add_violations(tracker, calls.at_unscale(tracker, site))

        def after(result: Any, error: bool) -> None:
            if not error:
                tracker.scaling.stage, tracker.scaling.unscaled = "unscaled", True
                tracker.scaling.unscaled_at, tracker.scaling.unscale_site = len(tracker.accumulated), site
            tracker.accept_writes()

        return after

    def on_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AfterCall | None:
        tracker = self.tracker_of(args, kwargs)
        if tracker is None:
            return None
        loop, site = self.loop, call_site()
        tracker.detect_writes()
        tracker.scaling.left_scaled = not tracker.scaling.unscaled
        if tracker.scaling.stage == "stepped":
            loop.add_fault("update-missing", tracker.scaling.step_site, tracker)
        without = tracker.scaling.num_scale_calls == self.tracker.num_scale_calls
        unscaled = tracker.unused if without else [b for b in tracker.own if b.plain and not tracker.writes.since_step]
        if unscaled:
            loop.add_fault("loss-not-scaled", unscaled[0].site, tracker)
        late = [b.num_scaler_updates < self.tracker.num_updates for b in tracker.own]
        mixed = any(late) and (all(late) or self.tracker.scale_differs({b.num_scaler_updates for b in tracker.own}))
        if mixed and all(b.scaled for b in tracker.own):
            loop.add_fault("update-every-micro-batch", self.tracker.update_site, tracker)
        tracker.scaling.num_scale_calls = self.tracker.num_scale_calls
        self.tracker.stepping, attempts = tracker, tracker.attempts

        def after(result: Any, error: bool) -> None:
            self.tracker.stepping = None
            if error:  # PyTorch's message does not name the cause
                loop.add_violations(tracker, accumulation.zeroed_before_step(tracker, site))
                return
            tracker.scaling.stage, tracker.scaling.step_site = "stepped", site
            if tracker.attempts == attempts:  # the optimizer was not called
                loop.outputs[tracker.index].metrics.finish_update(self.tracker.value())
                before_step(loop, tracker, site, True)
                after_step(loop, tracker, True)

        return after

    def on_update(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AfterCall | None:
        if not self.is_followed(args[0]):
            return None
        trackers, site = self.loop.trackers, call_site()
        early = [t for t in trackers if t.unused and all(b.scaled for b in t.unused)]
        if any(t.scaling.stage == "stepped" for t in trackers):
            early = []
        for tracker in early:
            tracker.scaling.early_update_site = site

        def after(result: Any, error: bool) -> None:
            self.tracker.num_updates, self.tracker.update_site = self.tracker.num_updates + 1, site
            for tracker in trackers:
                tracker.scaling.stage, tracker.scaling.overflow_abandoned = "ready", False
            for tracker in early if error else ():  # PyTorch raises
                self.loop.add_fault("update-every-micro-batch", site, tracker)

        return after

    def tracker_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OptimizerTracker | None:
        """The tracker of the optimizer that a call of the followed scaler is about."""
        optimizer = unwrapped(args[1] if len(args) > 1 else kwargs.get("optimizer"))
        if not self.is_followed(args[0]):
            return None
        return next((t for t in self.loop.trackers if t.optimizer is optimizer), None)
