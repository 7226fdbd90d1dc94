"""Moves of learning rate schedules."""

from __future__ import annotations

import functools
from typing import Any

from torch.optim import lr_scheduler

from gradlab.watch import schedules, unseen
from gradlab.watch.events import Move
from gradlab.watch.follower import Follower
from gradlab.watch.listening import Listening
from gradlab.watch.loop import Loop
from gradlab.watch.parts import bare
from gradlab.watch.taps import After, owner_of
from gradlab.watch.where import Site, site

OWN = [c for c in vars(lr_scheduler).values() if isinstance(c, type) and "step" in vars(c)]
"""Classes of PyTorch's with a `step` of their own."""
LENGTHS = ("T_max", "total_steps")


class Scheduling:
    """Every schedule of PyTorch's that moves a followed optimizer, and those that were handed over."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.within = False
        """A schedule of several moves them."""
        self.moves: dict[int, tuple[Any, Follower, Site | None, int]] = {}

    def listen(self, to: Listening) -> None:
        for owner in [*OWN, *(owner_of(s, "step") for s in self.loop.schedules)]:
            to.tap(owner, "step", self.on_step)

    def on_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> After | None:
        schedule = args[0]
        if self.within or not hasattr(schedule, "_last_lr"):  # it is only being made
            return None
        own = bare(getattr(schedule, "optimizer", None))
        followers = [f for f in self.loop.followers if f.optimizer is own]
        if not followers:
            return None
        self.within, where = True, site()
        for f in followers:
            unseen.catch_up(self.loop, f)
            asked = len(args) > 1 or bool(kwargs)  # for an epoch by its number
            fresh = not self.loop.backwards and not asked
            self.loop.found(f, schedules.at_move(f, id(schedule), where, fresh))
            f.scheduled.append(Move(id(schedule), where, len(f.new)))
            count = self.moves.get(id(schedule), (0,))[-1] + 1
            self.moves[id(schedule)] = (schedule, f, where, count)

        def after(result: Any, error: bool) -> None:
            self.within = False

        return after

    def finish(self) -> None:
        """The loop is over: were schedules as long as they were meant to be?"""
        for schedule, f, where, count in self.moves.values():
            self.loop.found(f, schedules.at_end(f, where, count, length(schedule)))


def length(schedule: Any) -> int | None:
    """Moves until a schedule's end, where it says so."""
    for name in LENGTHS:
        if isinstance(value := getattr(schedule, name, None), int):
            return value
    for rate in getattr(schedule, "lr_lambdas", ()):
        if isinstance(rate, functools.partial) and isinstance(n := rate.keywords.get("num_training_steps"), int):
            return n
    return None
