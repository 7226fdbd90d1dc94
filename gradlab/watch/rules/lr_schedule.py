"""Rules about learning rate schedules, which count updates."""

from __future__ import annotations

from collections.abc import Iterator

from gradlab.watch.call_site import CallSite
from gradlab.watch.events import Violation
from gradlab.watch.optimizer_tracker import OptimizerTracker


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


def at_end(tracker: OptimizerTracker, site: CallSite | None, num_steps: int, length: int | None) -> Iterator[Violation]:
    """At the end of a loop that accumulates: is the schedule as long as there were micro-batches?

    num_steps: steps of the schedule. length: steps until its end; None if unknown.
    """
    accumulates = tracker.attempts * 2 <= tracker.num_backwards
    if length == tracker.num_backwards and accumulates and abs(num_steps - tracker.attempts) <= 1:
        yield "schedule-length-in-micro-batches", site, f"{num_steps} of {length} steps"
