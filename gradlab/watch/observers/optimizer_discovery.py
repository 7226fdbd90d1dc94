"""Optimizers that were not passed to the watch."""

from __future__ import annotations

import gc
from statistics import median
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from gradlab.watch.arguments import unwrapped
from gradlab.watch.call_site import CallSite, call_site, call_stack, format_site
from gradlab.watch.instrumentation import Instrumentation
from gradlab.watch.loop_state import LoopState
from gradlab.watch.making_lines import returned_to
from gradlab.watch.patches import AfterCall
from gradlab.watch.rules import reach
from gradlab.watch.tracking.moved_weights import have_moved
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

ANEW, FEWEST = 10, 4
"""Optimizers that go on where another one of the same line was left: fewer may be stages of a training; of updates that
are next to none of those that it averages over, as few are enough."""
SHORT = 40
"""Times that an optimizer averages over more updates than it makes, in a stage that is too short to be one."""

MANY = 20
"""Optimizers of one line after which those that were replaced are not followed: else each update costs more."""

SUMMED = 1000.0
"""Updates for an optimizer that sums over all of them, as many as others usually average over."""


class OptimizerDiscovery:
    """If none was passed: tracks those that exist, and those that are created, zeroed or stepped later."""

    def __init__(self, loop: LoopState, track: bool) -> None:
        """track: whether to track optimizers that are discovered; if not, their steps are noted."""
        self.loop, self.track = loop, track
        self.made: dict[CallSite | None, list[OptimizerTracker]] = {}
        """The line at which optimizers were made -> those that are tracked."""
        self.noted: dict[int, tuple[Any, list[OptimizerTracker]]] = {}
        """id -> optimizer, and the trackers whose parameters it moves."""

    def install(self, instrumentation: Instrumentation) -> None:
        if not self.track:
            instrumentation.hook(register_optimizer_step_pre_hook, lambda optimizer, *_: self.note(optimizer))
            return
        gc.collect()  # optimizers of an earlier run to which nobody refers any more
        for thing in gc.get_objects():
            if issubclass(type(thing), torch.optim.Optimizer) and hasattr(thing, "param_groups"):
                self.consider(thing)
        instrumentation.patch(torch.optim.Optimizer, "__init__", self.on_init)
        instrumentation.patch(torch.optim.Optimizer, "load_state_dict", self.on_load)
        instrumentation.patch(torch.optim.Optimizer, "zero_grad", self.on_zero_grad)
        instrumentation.hook(register_optimizer_step_pre_hook, self.on_step)

    def note(self, optimizer: Any) -> None:
        """An optimizer that is not tracked steps: does it move the parameters of a tracked one?"""
        if id(optimizer) not in self.noted:
            inner, ids = unwrapped(optimizer), {id(p) for group in optimizer.param_groups for p in group["params"]}
            tracked = any(tracker.optimizer is inner for tracker in self.loop.trackers)
            moved = [tracker for tracker in self.loop.trackers if not tracked and ids & tracker.ids]
            self.noted[id(optimizer)] = optimizer, moved
            for tracker in moved:
                tracker.others.untracked.append(f"{type(optimizer).__name__} at {format_site(call_site())}")
        for tracker in self.noted[id(optimizer)][1]:
            if not tracker.started:  # it is no part of that one's step
                tracker.detect_writes()
                self.loop.add_violations(tracker, reach.stepped_by_untracked(tracker, optimizer, call_site()))

    def is_only_one(self, tracker: OptimizerTracker) -> bool:
        """Whether no other optimizer has stepped, of whatever weights."""
        return len(self.loop.trackers) == 1 and all(
            unwrapped(optimizer) is tracker.optimizer for optimizer, _ in self.noted.values()
        )

    def on_init(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AfterCall:
        site = returned_to(call_stack()) or call_site()

        def after(result: Any, error: bool) -> None:
            tracker = None if error else self.consider(args[0])
            if tracker is not None:
                made = self.made.setdefault(site, [])
                tracker.others.is_successor = bool(made)
                last = next((each for each in reversed(made) if each.attempts), None)
                tracker.others.continues = last is not None and last.ids == tracker.ids and are_kept(last)
                if last is not None and tracker.others.continues and len(made) > MANY:
                    for each in made if len(made) == MANY + 1 else [last]:
                        each.others.replaced = each.ids == tracker.ids
                made.append(tracker)

        return after

    def on_load(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """It goes on with the averages of the other one."""
        for tracker in self.loop.trackers:
            if tracker.optimizer is args[0]:
                tracker.others.continues = False

    def at_end(self) -> None:
        """The loop is over: were optimizers made for fewer updates than they average over?"""
        for site, made in self.made.items():
            often = sum(t.others.continues for t in made if t.attempts)
            updates = median([t.attempts for t in made if t.attempts] or [0])
            averaged = averaged_updates(made[0].optimizer)
            enough = FEWEST if SHORT * updates < averaged else ANEW
            if often >= enough and 0 < 4 * updates < averaged:
                detail = f"{often} times, after {updates:g} updates; it averages over about {averaged:.0f}"
                self.loop.add_fault("optimizer-made-anew", site, made[1], detail, update=1)

    def on_step(self, optimizer: Any, *_: Any) -> None:
        self.consider(optimizer)

    def on_zero_grad(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.consider(args[0])

    def consider(self, optimizer: Any) -> OptimizerTracker | None:
        """Track an optimizer if it trains the models; returned if it is a new one."""
        tracked = any(tracker.optimizer is optimizer for tracker in self.loop.trackers)
        if tracked or unwrapped(optimizer) is not optimizer:
            return None
        names = self.loop.names()
        if any(p in names and p.requires_grad for group in optimizer.param_groups for p in group["params"]):
            return self.loop.track(optimizer)
        return None


def are_kept(tracker: OptimizerTracker) -> bool:
    """Whether the weights are what its latest step has made them, also where that was loaded again."""
    after = tracker.after_step[1]
    return tracker.is_left_as_stepped or (bool(after) and not have_moved(after))


def averaged_updates(optimizer: Any) -> float:
    """Over how many updates it averages gradients; 0 if over none."""
    given = optimizer.defaults
    if isinstance(optimizer, torch.optim.Adagrad):
        return SUMMED
    factors = [*(given.get("betas") or ()), *(given[name] for name in ("momentum", "alpha") if name in given)]
    return max((1 / (1 - f) for f in factors if isinstance(f, float) and 0 < f < 1), default=0.0)
