"""Rules about schedules: they count updates."""

from __future__ import annotations

from collections.abc import Iterator

from gradlab.watch.events import Found
from gradlab.watch.follower import Follower
from gradlab.watch.where import Site


def at_move(f: Follower, schedule: int, site: Site | None, fresh: bool) -> Iterator[Found]:
    """When a schedule moves. Once between two steps is right, with a backward pass in between twice is not.

    fresh: nothing else has happened yet. The same line again is then the head of a loop.
    """
    before = [m for m in f.scheduled if m.schedule == schedule]
    if before and before[-1].held < len(f.new):
        yield "schedule-every-micro-batch", site, ""
    if fresh:
        f.heads.append(site)
    elif site in f.heads and f.attempts and not f.new:
        f.heads.remove(site)
        yield "schedule-before-step" if f.attempts == 1 else "schedule-before-epoch", site, ""


def at_end(f: Follower, site: Site | None, moves: int, length: int | None) -> Iterator[Found]:
    """Of a loop that accumulates: a schedule as long as there were micro-batches has moved once an update."""
    if length == f.backwards and f.attempts * 2 <= f.backwards and abs(moves - f.attempts) <= 1:
        yield "schedule-length-in-micro-batches", site, f"{moves} of {length} moves"
