"""Rules about windows of micro-batches: zeroed gradients, weights of the losses, and the remainder of an epoch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from gradlab.watch.call_site import CallSite, call_stack
from gradlab.watch.events import BackwardPass, Violation
from gradlab.watch.order_sites import is_scaled, is_zeroed, writing_line
from gradlab.watch.source_lines import check_line, repeats_listed
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker, listed

THROWN = 10
"""Updates in a row in which a pass is zeroed, after which the next one is followed."""


def zeroing(tracker: OptimizerTracker, unused: list[BackwardPass], site: CallSite | None) -> Iterator[Violation]:
    """At a step: were gradients zeroed too often, too late or never?"""
    yield from zeroed_before_step(tracker, site)
    if 0 < len(tracker.own) < len(tracker.accumulated) and (tracker.left.refilled or not tracker.left.versions):
        names = [tracker.name_of(p) for p in tracker.left.versions if id(p) in tracker.left.refilled]
        yield "zero-grad-missing", site, f"those of {listed(names)}" if names else ""
    dropped = finite_dropped(tracker)
    if not unused or tracker.steps_without_drop or tracker.window is not None:
        return
    if {b.site for b, _ in dropped} != {unused[-1].site}:
        return
    # Dropped once may be a guard that skips a batch; divided losses, or as many dropped before, are micro-batches.
    divided = all(0 < b.weight.product < 1 for b in [*unused, *(b for b, _ in dropped)])
    if tracker.dropped_last == len(dropped) or divided:
        detail = f"{len(dropped)} of {len(dropped) + len(unused)} lost"
        yield "zero-grad-in-window", dropped[-1][1] or unused[-1].site, detail


def zeroed_before_step(tracker: OptimizerTracker, site: CallSite | None) -> Iterator[Violation]:
    """At a step of which all gradients were zeroed since backward."""
    dropped = finite_dropped(tracker)
    if tracker.writes.since_step or tracker.accumulated or not dropped:
        return
    if len(dropped) == len(tracker.dropped):
        yield "zero-before-step", dropped[-1][1] or writing_line(site, is_zeroed) or site, ""


def note_thrown(tracker: OptimizerTracker) -> None:
    """At a step: in how many updates in a row had a pass of another loss been zeroed, that nothing has used since?"""
    unused, used = tracker.unused, any(first.used_by for first, _ in tracker.thrown.latest)
    lines, known = {b.site for b in unused}, [each for b in unused for each in (*b.extends, *b.repeats)]
    thrown = [(b, site) for b, site in finite_dropped(tracker) if b.site not in lines and b not in known]
    in_a_row = tracker.steps_without_drop == tracker.thrown.steps_before and not used
    tracker.thrown.steps_before = tracker.steps_without_drop
    tracker.thrown.latest = thrown if unused and not tracker.writes.since_step else []
    tracker.thrown.updates = (tracker.thrown.updates * in_a_row + 1) * bool(tracker.thrown.latest)


def finite_dropped(tracker: OptimizerTracker) -> list[tuple[BackwardPass, CallSite | None]]:
    """Dropped backward passes whose loss was finite."""
    return [(b, site) for b, site in tracker.dropped if is_finite(b.loss)]


def at_drop(tracker: OptimizerTracker, site: CallSite | None) -> Iterator[Violation]:
    """Before finite gradients that no optimizer has used are zeroed."""
    unused, n = tracker.unused, tracker.window
    k = len(unused)
    if n and k < n and len({b.site for b in unused}) == 1 and all(close(b.weight.product, 1 / n) for b in unused):
        yield "remainder-left", site, f"{k} of {n} micro-batches dropped"


def loss_weights(tracker: OptimizerTracker, unused: list[BackwardPass], site: CallSite | None) -> Iterator[Violation]:
    """At a step: are the losses weighted by the number of micro-batches?"""
    k, products = len(unused), [b.weight.product for b in unused]
    if not tracker.attempts and len(set(products)) == 1 and not tracker.dropped:
        tracker.first = k, products[0]
    if not unused or len(unused) != len(tracker.accumulated) or len({b.site for b in unused}) > 1:
        return
    if is_window(unused):
        if all(b.weight.reduction == "mean" and set(b.weight.factors) <= {1.0} for b in unused):
            yield "accumulation-unscaled", unused[0].site, f"{k} micro-batches"
        twice = all(len(b.weight.factors) > 1 and close(b.weight.product, 1 / k**2) for b in unused)
        if twice and tracker.attempts:  # its lines are known from the second update on
            detail, since = f"{k} micro-batches, each weighted {products[0]:.3g}", (1,) * (tracker.first[0] == k)
            yield "loss-divided-twice", tracker.divided_at or unused[0].site, detail, *since  # type: ignore[misc]
        if all(close(p, 1 / k) for p in products):
            if tracker.window is None and 0 < tracker.first[0] < k and close(tracker.first[1], 1 / k):
                detail = f"the first update is made of {tracker.first[0]} micro-batch{'es' * (tracker.first[0] > 1)}"
                yield "remainder-underscaled", check_line(site) or site, f"{detail}, weighted 1/{k}", 1
            tracker.window = k
            yield from unequal_counts(unused)
    n = tracker.window
    if n and k != n and all(close(p, 1 / n) for p in products):
        if k < n:
            site = tracker.divided_at or unused[0].site
            yield "remainder-underscaled", site, f"{k} micro-batches, each weighted 1/{n}"
        elif k < 2 * n:
            yield "remainder-left", site, f"{k} micro-batches in one update, each weighted 1/{n}"


def divided_by_hand_too(tracker: OptimizerTracker, unused: list[BackwardPass]) -> Iterator[Violation]:
    """At a step on gradients that the loop has written to: were they divided once more, as the losses were?"""
    k = len(unused)
    again = len(tracker.writes.factors) == 1 and close(tracker.writes.factors[0] * k, 1)
    known = k == len(tracker.accumulated) and is_window(unused)
    if again and known and all(close(b.weight.product, 1 / k) for b in unused):
        site = writing_line(unused[0].site, is_scaled) or unused[0].site
        yield "loss-divided-twice", site, f"{k} micro-batches, and their gradients are divided again"


def unequal_counts(unused: list[BackwardPass]) -> Iterator[Violation]:
    """Means over unequal numbers of targets; the last micro-batch may be the end of the data."""
    counts = [b.weight.count for b in unused]
    known = [c for c in counts if c is not None]
    if len(known) == len(counts) and max(known[:-1]) > 1.01 * min(known[:-1]):
        yield "mean-of-means", unused[0].site, f"of {', '.join(f'{c:g}' for c in known)} targets"


def is_window(unused: list[BackwardPass], at_step: bool = True) -> bool:
    """Whether these are micro-batches: the same call several times, each time after a forward pass.

    A function that is called at two places may be given two terms of one loss; so may a loop over what is listed in the
    text.
    """
    if len(unused) < 2 or any(b.path != unused[0].path for b in unused) or not all(b.num_forwards for b in unused):
        return False
    sites = tuple((code, number) for code, number, _ in unused[0].path)
    return not repeats_listed(sites, call_stack() if at_step else ())


def is_finite(loss: Any) -> bool:
    return loss is None or math.isfinite(float(loss))


def close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-4)
