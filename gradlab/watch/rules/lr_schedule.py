"""Rules about learning rate schedules, which count updates."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

import torch

from gradlab.watch.arguments import unwrapped
from gradlab.watch.call_site import CallSite
from gradlab.watch.events import Violation
from gradlab.watch.making_lines import LENGTH, WEIGHTS, made_at
from gradlab.watch.source_lines import setting_line
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker
from gradlab.watch.tracking.schedule_lengths import schedule_lengths

LONG = 40
"""Updates after which a learning rate that is nearly 0 from before half of them on is no short test."""
START = 0.05
"""Part of the updates in which a schedule comes to its end that counts epochs and is stepped for each batch."""
LOW = 0.02
"""Part of the highest learning rate at which nearly nothing is trained for the rest of them."""
STILL = 1e-9
"""Part of the highest learning rate at which steps are lost in rounding."""

UNFINISHED = 0.05
"""Part of the learning rate below which a warm-up has hardly begun."""
BEGUN = 0.25
"""The same of one that counts updates and is stepped less often."""
EPOCHS = 200
"""Epochs that no warm-up lasts."""
FEWER = 4
"""Updates in an epoch at least, for its steps to be told from those after updates."""
IDLE = 3
"""Steps of a schedule since the latest step of its optimizer."""
LIVES = 5
"""Schedules of one optimizer that are made one after the other: training has fewer stages."""
PARTS = 4
"""Times that the steps of each of them are fewer than those that it was made for."""
LATER = (torch.optim.lr_scheduler.ReduceLROnPlateau, torch.optim.swa_utils.SWALR)
"""Kinds of schedules that begin to step some time into the training."""


@dataclass
class Idle:
    """Steps of a schedule whose optimizer is not stepped between them."""

    schedule: Any
    optimizer: Any
    own: int
    """Updates of its optimizer, if that is tracked."""
    rate: float
    """Its optimizer's learning rate before the first of them."""
    attempts: list[int]
    """Updates of each tracked optimizer at that time."""
    rates: list[float]
    """Learning rates of these."""
    site: CallSite | None = None
    steps: int = 0


@dataclass
class Life:
    """One of several schedules of an optimizer that are made one after the other."""

    kind: type
    site: CallSite | None
    start: float
    """Learning rate before its first step."""
    length: int
    """Steps until its end; 0 where it is not known."""
    made: CallSite | None
    """The line that makes it, if it was made while the loop ran."""
    steps: int = 0
    end: float = 0.0
    """Learning rate after its latest step."""


def life_of(schedule: Any, site: CallSite | None, made: CallSite | None) -> Life:
    """As it steps first."""
    lengths = schedule_lengths(schedule) if not hasattr(schedule, "lr_lambdas") else ()  # these hold other numbers too
    return Life(type(schedule), site, rate_of(unwrapped(schedule.optimizer)), max(lengths, default=0), made)


def made_anew(lives: Sequence[Life]) -> Iterator[Violation]:
    """At the end: do schedules that replace each other begin their warm-up again, or never come to change anything?

    Cycles that fall, and rise with the next schedule, are restarts, if each comes to its end. So are stages, as of
    several tasks, that are ended early: their steps are not as many each time. The last one may be under way.
    """
    if len(lives) < LIVES or len({(life.kind, life.site) for life in lives}) > 1:
        return
    site, times = lives[1].made or lives[1].site, f"{len(lives)} times"
    if all(life.start == life.end == lives[0].start for life in lives):
        yield "schedule-made-anew", site, f"{times}, and the learning rate never changes"
    elif all(one.start < one.end > two.start for one, two in pairwise(lives)):
        yield "schedule-made-anew", site, f"{times}, and each begins its warm-up again"
    elif len({(life.steps, life.length) for life in lives[:-1]}) == 1 and lives[-1].steps <= lives[0].steps:
        steps, length = lives[0].steps, lives[0].length
        if PARTS * steps <= length:
            yield "schedule-made-anew", site, f"{times}, and none makes more than {steps} of {length} steps"


def rate_of(optimizer: Any) -> float:
    """Its learning rate; NaN if there is none, or it is on a device, which would have to be waited for."""
    rate = optimizer.param_groups[0].get("lr", math.nan)
    return math.nan if isinstance(rate, torch.Tensor) and rate.device.type != "cpu" else float(rate)


def replaced(tracker: OptimizerTracker, idle: Idle, trackers: Sequence[OptimizerTracker]) -> Iterator[Violation]:
    """At the end, of an optimizer without a schedule: is there one of another optimizer of its weights, not stepped?"""
    groups = idle.optimizer.param_groups
    rate, shared = rate_of(idle.optimizer), {id(p) for group in groups for p in group["params"]} & tracker.ids
    if idle.steps < IDLE or rate == idle.rate or not shared or tracker.others.untracked:
        return
    if idle.own != sum(t.attempts for t in trackers if t.optimizer is idle.optimizer):
        return
    own = tracker.optimizer.param_groups
    known = tracker.index < len(idle.rates)
    started = idle.rates[tracker.index] if known else tracker.rates.first
    done = tracker.attempts - (idle.attempts[tracker.index] if known else 0)
    follows = any(a is b for a in own for b in groups) or rate_of(tracker.optimizer) != started
    if not follows and done >= max(LONG, idle.own):
        detail = f"its rate is {rate:.3g} now, the one in use {started:.3g}"
        yield made_at("schedule-of-another-optimizer", idle.schedule, idle.site, detail, part=WEIGHTS)


def doubled(
    steps: Sequence[tuple[Any, OptimizerTracker, CallSite | None, int]], trackers: Sequence[OptimizerTracker]
) -> Iterator[tuple[OptimizerTracker, Violation]]:
    """At the end: does one optimizer have two schedules that do the same, of which one is meant for another optimizer?

    steps: schedules, their optimizers, the lines of their latest steps and how many there were.
    """
    held = {tracker.index for _, tracker, _, _ in steps}
    without = [t for t in trackers if t.attempts >= LONG and not t.rates.changes and t.index not in held]
    for (one, tracker, _, number), (two, other, site, times) in combinations(steps, 2):
        same = type(one) is type(two) and number == times >= IDLE and settings(one) == settings(two)
        if without and tracker is other and same and tracker.rates.changes:
            detail = f"optimizer {tracker.index} has two that are alike"
            yield without[0], made_at("schedule-of-another-optimizer", two, site, detail, part=WEIGHTS)
            return


def settings(schedule: Any) -> dict[str, Any]:
    """What a schedule was made with, and how far it is."""
    return {name: value for name, value in vars(schedule).items() if name != "optimizer" and name[0] != "_"}


def unfinished(
    tracker: OptimizerTracker,
    schedule: Any,
    site: CallSite | None,
    num_steps: int,
    peak: Callable[[], tuple[float, int]],
) -> Iterator[Violation]:
    """At the end: was the learning rate always a small part of the one that its schedule leads to?

    peak: that rate, and after how many steps, or 0; asked only of a rate that rose. A warm-up of fewer steps than there
    were updates, of which a small part was made, counts updates. One that may count epochs may be watched for a few.
    """
    updates, now = tracker.attempts, rate_of(tracker.optimizer)
    highest = max(tracker.rates.peak, now)
    if updates < LONG or not 0 < tracker.rates.first < now:
        return
    rate, at = peak()
    seldom = num_steps * FEWER <= updates
    if seldom and at < EPOCHS:
        return
    if highest < (BEGUN if seldom and at <= updates else UNFINISHED) * rate:
        steps = (
            f", which it has after some {at} steps: it was stepped {num_steps} times in {updates} updates" if at else ""
        )
        yield made_at("warm-up-unfinished", schedule, site, f"at most {highest:.3g} of {rate:.3g}{steps}", part=LENGTH)


def at_schedule_step(
    tracker: OptimizerTracker, schedule: int, site: CallSite | None, first: bool
) -> Iterator[Violation]:
    """When a schedule steps: once between two updates is right, a second time after a backward pass is not.

    schedule: its id(). first: no backward pass has run yet. The same line later is then the start of a loop's body.
    """
    earlier = [s for s in tracker.schedule_steps if s.schedule == schedule]
    if earlier and earlier[-1].num_unused < len(tracker.unused):
        yield "schedule-every-micro-batch", site, ""
    if first:
        tracker.initial_schedule_sites.append(site)
    elif site in tracker.initial_schedule_sites and tracker.attempts and not tracker.unused:
        tracker.initial_schedule_sites.remove(site)
        yield "schedule-before-step" if tracker.attempts == 1 else "schedule-before-epoch", site, ""


def too_short(tracker: OptimizerTracker, site: CallSite | None) -> Iterator[Violation]:
    """At the end, of a rate that is set after each update: does the schedule end long before the updates do?"""
    rates, updates = tracker.rates, tracker.attempts
    if updates < LONG:
        return
    if rates.peak > 0 and rates.last_alive < updates / 2:
        since = rates.last_alive + 2
        yield "schedule-too-short", site, f"from update {since} on the rate is nearly nothing", since
    elif 0 < rates.latest < LOW * rates.peak and rates.since < START * updates:
        since = rates.since + 1
        yield (
            "schedule-too-short",
            site,
            f"from update {since} on the rate is {rates.latest:.2g}, after {rates.peak:.2g}",
            since,
        )


def set_by_hand(tracker: OptimizerTracker, site: CallSite | None) -> Iterator[Violation]:
    """The same of a rate that the loop lowers itself, after each update, until it moves no weight."""
    rates = tracker.rates
    if rates.changes >= max(IDLE, rates.last_alive / 2) and rates.latest <= STILL * rates.peak:
        for name, _, *rest in too_short(tracker, site):
            line = setting_line(site[0], "lr") if site is not None else None
            yield name, line or site, *rest  # type: ignore[misc]


def counts_epochs(
    schedule: Any, steps: int, updates: int, is_low: bool, lengths: Callable[[], list[int | None]]
) -> bool:
    """As it steps beyond its end, where its rate is nearly nothing or a cosine rises again: is that end the number of
    rounds of an outer loop?

    It must be stepped at each update: folds of a few epochs may be as many as its own.

    is_low: whether the rate is nearly nothing. lengths: rounds of the loops that run, the innermost first; asked once.
    """
    last = getattr(schedule, "_schedulers", [schedule])[-1]
    at_end = is_low or type(last) is torch.optim.lr_scheduler.CosineAnnealingLR
    known = at_end and 0 <= updates - steps + 1 <= 1 and steps - 1 in schedule_lengths(schedule)
    return known and steps - 1 in lengths()[1:]


def idle_schedules(
    trackers: Sequence[OptimizerTracker], known: Sequence[Any]
) -> Iterator[tuple[Any, OptimizerTracker]]:
    """Schedules that exist and were never stepped, and the optimizers whose rate they would change.

    known: those that were passed to the watch. Others may be meant for later, as those that follow a metric or begin
    with an average of weights; or are parts of one that is stepped.
    """
    long = any(tracker.attempts >= LONG and not tracker.rates.changes for tracker in trackers)
    everything = gc.get_objects() if long else []
    alive = [each for each in everything if issubclass(type(each), torch.optim.lr_scheduler.LRScheduler)]
    parts = {id(part) for each in alive for part in getattr(each, "_schedulers", ())}
    for schedule in {id(each): each for each in [*known, *alive]}.values():
        passed = any(schedule is each for each in known)
        fresh = getattr(schedule, "last_epoch", 0) == 0 and id(schedule) not in parts
        if not passed and (not fresh or isinstance(schedule, LATER)):
            continue
        optimizer = unwrapped(getattr(schedule, "optimizer", None))
        for tracker in trackers:
            if tracker.optimizer is optimizer and tracker.attempts >= LONG and (passed or not tracker.rates.changes):
                yield schedule, tracker


def at_end(
    tracker: OptimizerTracker,
    schedule: Any,
    site: CallSite | None,
    num_steps: int,
    lengths: set[int],
    plateau: bool,
) -> Iterator[Violation]:
    """At the end of a loop: is the schedule as long as there were updates, and in a loop that accumulates no longer?

    num_steps: steps of the schedule. lengths: steps until its end, as far as they are known. plateau: it follows a
    metric.
    """
    updates, passes = tracker.attempts, tracker.num_used
    if 0.9 * updates <= num_steps <= 1.1 * updates and not plateau:  # more: those of micro-batches
        for name, _, detail, *since in too_short(tracker, site):
            yield made_at(name, schedule, site, detail, *since, part=LENGTH)
    accumulates = tracker.accumulates and updates * 2 <= passes  # else the passes are another optimizer's
    if accumulates and lengths & {passes, passes + 1} and abs(num_steps - updates) <= 1:
        detail = f"{num_steps} of {passes} steps"
        yield made_at("schedule-length-in-micro-batches", schedule, site, detail, part=LENGTH)
    counted = lengths & {updates, updates + 1, passes, passes + 1}
    if counted and updates >= LONG and num_steps * FEWER <= updates:
        detail = f"{num_steps} of {max(counted)} steps"
        yield made_at("schedule-length-in-updates", schedule, site, detail, part=LENGTH)
