"""Steps of learning rate schedules."""

from __future__ import annotations

import functools
from typing import Any

from torch.optim import lr_scheduler

from gradlab.watch.arguments import unwrapped
from gradlab.watch.call_site import CallSite, call_site
from gradlab.watch.events import ScheduleStep
from gradlab.watch.instrumentation import Instrumentation
from gradlab.watch.loop_state import LoopState
from gradlab.watch.observers import compiled_steps
from gradlab.watch.optimizer_tracker import OptimizerTracker
from gradlab.watch.patches import AfterCall, defining_class
from gradlab.watch.rules import lr_schedule as rules

TORCH_SCHEDULES = [c for c in vars(lr_scheduler).values() if isinstance(c, type) and "step" in vars(c)]
"""PyTorch's classes that define a `step`."""
LENGTH_ATTRIBUTES = ("T_max", "total_steps")


class ScheduleObserver:
    """Observes every schedule of PyTorch's of a tracked optimizer, and those that were passed to the watch."""

    def __init__(self, loop: LoopState) -> None:
        self.loop = loop
        self.running = False
        """Whether a schedule's step is running, which may step other schedules."""
        self.counts: dict[int, tuple[Any, OptimizerTracker, CallSite | None, int]] = {}
        """id of a schedule -> schedule, tracker of its optimizer, call site of its latest step, number of steps."""

    def install(self, instrumentation: Instrumentation) -> None:
        for owner in [*TORCH_SCHEDULES, *(defining_class(s, "step") for s in self.loop.schedules)]:
            instrumentation.patch(owner, "step", self.on_step)

    def on_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AfterCall | None:
        schedule = args[0]
        if self.running or not hasattr(schedule, "_last_lr"):  # without it, this is the step of its constructor
            return None
        optimizer = unwrapped(getattr(schedule, "optimizer", None))
        trackers = [t for t in self.loop.trackers if t.optimizer is optimizer]
        if not trackers:
            return None
        self.running, site = True, call_site()
        explicit_epoch = len(args) > 1 or bool(kwargs)
        for tracker in trackers:
            compiled_steps.detect(self.loop, tracker)
            first = not self.loop.seen.num_backwards and not explicit_epoch
            self.loop.add_violations(tracker, rules.at_schedule_step(tracker, id(schedule), site, first))
            tracker.schedule_steps.append(ScheduleStep(id(schedule), site, len(tracker.unused)))
            count = self.counts.get(id(schedule), (0,))[-1] + 1
            self.counts[id(schedule)] = (schedule, tracker, site, count)

        def after(result: Any, error: bool) -> None:
            self.running = False

        return after

    def at_end(self) -> None:
        """The loop is over: were the schedules as long as intended?"""
        for schedule, tracker, site, count in self.counts.values():
            plateau = isinstance(schedule, lr_scheduler.ReduceLROnPlateau)
            self.loop.add_violations(
                tracker, rules.at_end(tracker, site, count, schedule_length(schedule), plateau), at_end=True
            )
        for schedule in self.loop.schedules:
            optimizer = unwrapped(getattr(schedule, "optimizer", None))
            for tracker in self.loop.trackers if id(schedule) not in self.counts else ():
                if tracker.optimizer is optimizer and tracker.attempts >= rules.LONG:
                    self.loop.add_fault("schedule-never-stepped", tracker.step_site, tracker, at_end=True)


def schedule_length(schedule: Any) -> int | None:
    """Steps until a schedule's end; None if it does not define one."""
    for name in LENGTH_ATTRIBUTES:
        if isinstance(value := getattr(schedule, name, None), int):
            return value
    for rate in getattr(schedule, "lr_lambdas", ()):
        if isinstance(rate, functools.partial) and isinstance(n := rate.keywords.get("num_training_steps"), int):
            return n
    return None
