"""Steps of learning rate schedules."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from torch.optim import lr_scheduler

from gradlab.watch.arguments import unwrapped
from gradlab.watch.call_site import CallSite, call_stack
from gradlab.watch.events import ScheduleStep
from gradlab.watch.instrumentation import Instrumentation
from gradlab.watch.later_steps import may_be_stepped
from gradlab.watch.loop_state import LoopState
from gradlab.watch.making_lines import LENGTH, MODE, made_at, returned_to
from gradlab.watch.observers import compiled_steps
from gradlab.watch.order_sites import order_site
from gradlab.watch.patches import AfterCall, defining_class
from gradlab.watch.rules import lr_schedule as rules
from gradlab.watch.rules import plateaus
from gradlab.watch.source_lines import loop_lengths
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker
from gradlab.watch.tracking.schedule_lengths import peak, schedule_lengths

TORCH_SCHEDULES = [c for c in vars(lr_scheduler).values() if isinstance(c, type) and "step" in vars(c)]
"""PyTorch's classes that define a `step`."""


class ScheduleObserver:
    """Observes every schedule of PyTorch's of a tracked optimizer, and those that were passed to the watch."""

    def __init__(self, loop: LoopState) -> None:
        self.loop = loop
        self.running = False
        """Whether a schedule's step is running, which may step other schedules."""
        self.counts: dict[int, tuple[Any, OptimizerTracker, CallSite | None, int]] = {}
        """id of a schedule -> schedule, tracker of its optimizer, call site of its latest step, number of steps."""
        self.idle: dict[int, rules.Idle] = {}
        """id of a schedule -> its latest steps, since a step of its optimizer."""
        self.lives: dict[int, dict[int, rules.Life]] = {}
        """Index of an optimizer -> id of a schedule of its -> its learning rates."""
        self.made: dict[int, CallSite | None] = {}
        """id of a schedule that is made while the loop runs -> where; of one that is gone, another's is overwritten."""
        self.metrics: dict[int, list[plateaus.Measured]] = {}
        """id of a schedule that follows a metric -> what it was given."""

    def install(self, instrumentation: Instrumentation) -> None:
        for owner in [*TORCH_SCHEDULES, *(defining_class(s, "step") for s in self.loop.schedules)]:
            instrumentation.patch(owner, "step", self.on_step)

    def on_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AfterCall | None:
        schedule = args[0]
        if self.running:
            return None
        if not hasattr(schedule, "_last_lr"):  # this is the step of its constructor
            self.made[id(schedule)] = returned_to(call_stack())
            return None
        optimizer = unwrapped(getattr(schedule, "optimizer", None))
        trackers = [t for t in self.loop.trackers if t.optimizer is optimizer]
        if not hasattr(optimizer, "param_groups"):
            return None
        self.running, site = True, order_site()
        self.note_idle(schedule, optimizer, trackers, site)
        rate_before = rules.rate_of(optimizer)
        ended: list[tuple[OptimizerTracker, int]] = []
        explicit_epoch = len(args) > 1 or bool(kwargs)
        for tracker in trackers:
            compiled_steps.detect(self.loop, tracker)
            first = not self.loop.seen.num_backwards and not explicit_epoch
            self.loop.add_violations(tracker, rules.at_schedule_step(tracker, id(schedule), site, first))
            tracker.schedule_steps.append(ScheduleStep(id(schedule), site, len(tracker.unused)))
            count = self.counts.get(id(schedule), (0,))[-1] + 1
            self.counts[id(schedule)] = (schedule, tracker, site, count)
            is_low = rate_before <= rules.LOW * tracker.rates.peak
            if rules.counts_epochs(schedule, count, tracker.attempts, is_low, loop_lengths):
                ended.append((tracker, count - 1))

        lives = [self.life(tracker, schedule, site) for tracker in trackers]

        def after(result: Any, error: bool) -> None:
            self.running, rate = False, rules.rate_of(optimizer)
            for life in lives:
                life.steps, life.end = life.steps + 1, rate
            then = "rises again from here on" if rate > rate_before else f"is {rate:.2g} after that"
            for tracker, length in ended:
                detail = f"it ends after {length} steps, the number of epochs; the rate {then}"
                self.loop.add_violations(tracker, [made_at("schedule-too-short", schedule, site, detail, part=LENGTH)])
            if trackers and isinstance(schedule, lr_scheduler.ReduceLROnPlateau) and not error:
                metric = args[1] if len(args) > 1 else kwargs.get("metrics", math.nan)
                loss = self.loop.outputs[trackers[0].index].stream.history.loss_late
                seen = plateaus.Measured(float(metric), loss, rate < rate_before)
                self.metrics.setdefault(id(schedule), []).append(seen)

        return after

    def life(self, tracker: OptimizerTracker, schedule: Any, site: CallSite | None) -> rules.Life:
        lives = self.lives.setdefault(tracker.index, {})
        if id(schedule) not in lives:
            lives[id(schedule)] = rules.life_of(schedule, site, self.made.get(id(schedule)))
        return lives[id(schedule)]

    def note_idle(self, schedule: Any, optimizer: Any, trackers: list[OptimizerTracker], site: CallSite | None) -> None:
        """Has its optimizer stepped since its step before?"""
        own, idle = sum(t.attempts for t in trackers), self.idle.get(id(schedule))
        if idle is None or idle.own != own:
            attempts = [t.attempts for t in self.loop.trackers]
            rates = [rules.rate_of(t.optimizer) for t in self.loop.trackers]
            idle = rules.Idle(schedule, optimizer, own, rules.rate_of(optimizer), attempts, rates)
            self.idle[id(schedule)] = idle
        idle.site, idle.steps = site, idle.steps + 1

    def at_end(self) -> None:
        """The loop is over: were the schedules as long as intended?"""
        for schedule, tracker, site, count in self.counts.values():
            plateau = isinstance(schedule, lr_scheduler.ReduceLROnPlateau)
            found = rules.at_end(tracker, schedule, site, count, schedule_lengths(schedule), plateau)
            self.loop.add_violations(tracker, found, at_end=True)
            self.loop.add_violations(
                tracker, rules.unfinished(tracker, schedule, site, count, partial(peak, schedule)), at_end=True
            )
            if plateau:
                seen = self.metrics.get(id(schedule), [])
                given, passes = tracker.constant, tracker.num_used / max(tracker.attempts, 1)
                single = given.known is not None and (given.known.key[0] == "classes" or given.known.key[1] == 1)
                constant = given.loss(passes) if single else None
                wrong = plateaus.contrary(schedule.mode, seen, constant, given.most if single else 1.0)
                for name, detail in wrong:
                    self.loop.add_violations(tracker, [made_at(name, schedule, site, detail, part=MODE)], at_end=True)
        for index, lives in self.lives.items():
            anew = rules.made_anew(list(lives.values()))
            self.loop.add_violations(self.loop.trackers[index], anew, at_end=True)
        scheduled = {id(tracker.optimizer) for _, tracker, _, _ in self.counts.values()}
        for idle in self.idle.values():
            for tracker in self.loop.trackers:
                if id(tracker.optimizer) not in scheduled:
                    self.loop.add_violations(tracker, rules.replaced(tracker, idle, self.loop.trackers), at_end=True)
        for tracker in self.loop.trackers:
            if id(tracker.optimizer) not in scheduled:
                self.loop.add_violations(tracker, rules.set_by_hand(tracker, tracker.step_site), at_end=True)
        for tracker, violation in self.loop.seen.ask(
            rules.doubled, list(self.counts.values()), self.loop.trackers, default=[]
        ):
            self.loop.add_violations(tracker, [violation], at_end=True)
        self.never_stepped(scheduled)

    def never_stepped(self, scheduled: set[int]) -> None:
        """scheduled: ids of the optimizers of which a schedule was stepped."""
        sites = [*(t.step_site for t in self.loop.trackers), *(site for _, _, site, _ in self.counts.values())]
        for schedule, tracker in rules.idle_schedules(self.loop.trackers, self.loop.schedules):
            passed = any(schedule is each for each in self.loop.schedules)
            unknown = self.loop.trainer_site is not None or may_be_stepped(schedule, sites)
            stepped = id(schedule) in self.counts if passed else id(tracker.optimizer) in scheduled or unknown
            if not stepped:
                self.loop.add_fault("schedule-never-stepped", tracker.step_site, tracker, at_end=True)
