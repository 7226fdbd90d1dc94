"""Rules about windows of micro-batches: their losses, their zeros, their remainder."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from gradlab.watch.events import Backward, Found
from gradlab.watch.follower import Follower
from gradlab.watch.where import Site


def clearing(f: Follower, new: list[Backward], site: Site | None) -> Iterator[Found]:
    """At a step."""
    yield from cleared(f, site)
    if new and any(f.index in b.used for b in f.held):
        yield "zero-grad-missing", site, ""
    dropped = lost(f)
    if not new or f.dropless or f.length is not None or {b.site for b, _ in dropped} != {new[-1].site}:
        return
    # Once may be a guard that skips; losses that are divided, or as many the time before, are micro-batches.
    if f.dropped_last == len(dropped) or all(0 < b.weight.product < 1 for b in [*new, *(b for b, _ in dropped)]):
        yield "zero-grad-in-window", dropped[-1][1] or new[-1].site, f"{len(dropped)} of {len(dropped) + len(new)} lost"


def cleared(f: Follower, site: Site | None) -> Iterator[Found]:
    """The optimizer steps, and its gradients were cleared since backward."""
    dropped = lost(f)
    if not f.by_hand and not f.held and dropped and len(dropped) == len(f.dropped):
        yield "zero-before-step", dropped[-1][1] or site, ""


def lost(f: Follower) -> list[tuple[Backward, Site | None]]:
    return [(b, where) for b, where in f.dropped if finite(b.loss)]


def at_drop(f: Follower, site: Site | None) -> Iterator[Found]:
    """Before gradients are cleared that are finite, and no optimizer has used."""
    k, n = len(f.new), f.length
    if n and k < n and len({b.site for b in f.new}) == 1 and all(close(b.weight.product, 1 / n) for b in f.new):
        yield "remainder-left", site, f"{k} of {n} micro-batches dropped"


def accumulation(f: Follower, new: list[Backward], site: Site | None) -> Iterator[Found]:
    """Weights of the losses against their number, at a step."""
    k, products = len(new), [b.weight.product for b in new]
    if not new or len(new) != len(f.held) or len({b.site for b in new}) > 1:
        return
    if one_loop(new):
        if all(b.weight.kind == "mean" and not b.weight.factors for b in new):
            yield "accumulation-unscaled", new[0].site, f"{k} micro-batches"
        if all(len(b.weight.factors) > 1 and close(b.weight.product, 1 / k**2) for b in new):
            yield "loss-divided-twice", new[0].site, f"{k} micro-batches, each weighed {products[0]:.3g}"
        if all(close(p, 1 / k) for p in products):
            f.length = k
            yield from unequal(new)
    n = f.length
    if n and k != n and all(close(p, 1 / n) for p in products):
        if k < n:
            yield "remainder-underscaled", new[0].site, f"{k} micro-batches, each weighed 1/{n}"
        elif k < 2 * n:
            yield "remainder-left", site, f"{k} micro-batches in one update, each weighed 1/{n}"


def unequal(new: list[Backward]) -> Iterator[Found]:
    """Means over unlike numbers of targets; the last one's may be the end of the data."""
    counts = [b.weight.count for b in new]
    known = [c for c in counts if c is not None]
    if len(known) == len(counts) and max(known[:-1]) > 1.01 * min(known[:-1]):
        yield "mean-of-means", new[0].site, f"of {', '.join(f'{c:g}' for c in known)} targets"


def one_loop(new: list[Backward]) -> bool:
    """Whether these are micro-batches: the same line again, each after a forward pass of its own."""
    return len(new) > 1 and len({b.site for b in new}) == 1 and all(b.forwards for b in new)


def finite(loss: Any) -> bool:
    return loss is None or math.isfinite(float(loss))


def close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-4)
