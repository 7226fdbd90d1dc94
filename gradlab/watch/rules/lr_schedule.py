"""Rules about learning rate schedules, which count updates."""

from __future__ import annotations

from collections.abc import Iterator

from gradlab.watch.call_site import CallSite
from gradlab.watch.events import Violation
from gradlab.watch.optimizer_tracker import OptimizerTracker

LONG = 40
"""Updates after which a learning rate that is nearly 0 from before half of them on is no short test."""


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


def at_end(
    tracker: OptimizerTracker, site: CallSite | None, num_steps: int, length: int | None, plateau: bool
) -> Iterator[Violation]:
    """At the end of a loop: is the schedule as long as there were updates, and in a loop that accumulates no longer?

    num_steps: steps of the schedule. length: steps until its end; None if unknown. plateau: it follows a metric.
    """
    gone = tracker.attempts >= LONG and tracker.peak_rate > 0 and tracker.last_alive < tracker.attempts / 2
    if gone and num_steps >= 0.9 * tracker.attempts and not plateau:
        yield "schedule-too-short", site, f"from update {tracker.last_alive + 2} on"
    accumulates = tracker.attempts * 2 <= tracker.num_backwards
    if length == tracker.num_backwards and accumulates and abs(num_steps - tracker.attempts) <= 1:
        yield "schedule-length-in-micro-batches", site, f"{num_steps} of {length} steps"
