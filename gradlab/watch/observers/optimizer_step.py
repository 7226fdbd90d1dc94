"""Steps of the tracked optimizers."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradlab.watch.call_site import call_site
from gradlab.watch.instrumentation import Instrumentation
from gradlab.watch.loop_state import LoopState
from gradlab.watch.patches import AfterCall, defining_class
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker
from gradlab.watch.updates import after_step, before_step

HOOK_FILE = torch.optim.Optimizer.profile_hook_step.__code__.co_filename
"""The file whose frames call the hooks of a step."""


class OptimizerStepObserver:
    """Hooks into the steps of each optimizer."""

    def __init__(self, loop: LoopState) -> None:
        self.loop = loop

    def install(self, instrumentation: Instrumentation) -> None:
        def hook_into(tracker: OptimizerTracker) -> None:
            optimizer = tracker.optimizer
            before, after = partial(self.before, tracker), partial(self.after, tracker)
            instrumentation.hook(optimizer.register_step_pre_hook, before, optimizer, chooses_thread=True)
            instrumentation.hook(optimizer.register_step_post_hook, after, optimizer)
            hooks: Any = optimizer._optimizer_step_post_hooks
            hooks.move_to_end(next(reversed(hooks)), last=False)  # what the loop's own ones do is done after the step
            owner = defining_class(optimizer, "add_param_group")
            instrumentation.patch(owner, "add_param_group", self.on_add_param_group)

        for tracker in self.loop.trackers:
            hook_into(tracker)
        self.loop.on_new_optimizer = [hook_into]

    def by_scaler(self, tracker: OptimizerTracker) -> bool | None:
        """Whether the scaler makes the running step; None without a scaler."""
        return self.loop.scaler.stepping is tracker if self.loop.scaler.enabled else None

    def on_add_param_group(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AfterCall | None:
        tracker = next((t for t in self.loop.trackers if t.optimizer is args[0]), None)
        return None if tracker is None else lambda result, error: self.loop.update_parameters(tracker)

    def before(self, tracker: OptimizerTracker, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if tracker.started and is_nested(optimizer):
            tracker.nested += 1
            return
        tracker.nested = 0
        tracker.closure.given = any(callable(a) for a in args[1:]) or callable(kwargs.get("closure"))
        tracker.detect_writes()
        self.loop.outputs[tracker.index].metrics.finish_update(self.loop.scaler.value())
        tracker.started = tracker.calls_hooks = True
        tracker.closure.running, tracker.closure.passes, tracker.closure.dropped = tracker.closure.given, [], []
        if not tracker.closure.given:
            before_step(self.loop, tracker, call_site(), self.by_scaler(tracker))
        if self.loop.lists_step is not None:
            self.loop.lists_step[0](tracker)

    def after(self, tracker: OptimizerTracker, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if tracker.nested:
            tracker.nested -= 1
            return
        if tracker.closure.given:
            tracker.detect_writes()
            tracker.dropped += tracker.closure.dropped
            before_step(self.loop, tracker, call_site(), self.by_scaler(tracker))
        tracker.closure.running = tracker.started = False
        scaled = self.loop.scaler.stepping is tracker
        found_inf = getattr(optimizer, "found_inf", None) if scaled else None  # a fused step skips inside its kernel
        after_step(self.loop, tracker, found_inf.clone() if isinstance(found_inf, Tensor) else False)
        if self.loop.lists_step is not None:
            self.loop.lists_step[1](tracker)


def is_nested(optimizer: Any) -> bool:
    """Whether this step was called by another step: a class whose step calls its base's runs all hooks twice."""
    frame, count = sys._getframe(2), 0
    while frame is not None:
        count += frame.f_code.co_filename == HOOK_FILE and frame.f_locals.get("self") is optimizer
        frame = frame.f_back  # type: ignore[assignment]
    return count > 1
