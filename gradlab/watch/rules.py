"""What is wrong with what a loop does, where it can be told from what is right. Silence is the answer to doubt."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from gradlab.watch.follower import Backward, Follower
from gradlab.watch.where import Site

Found = tuple[str, "Site | None", str]
"""Code, place, detail."""
KEPT = 4
"""Updates in a row whose losses are all alive: then they are kept."""


def at_clip(f: Follower, site: Site | None, scaler: bool, forwards: int) -> Iterator[Found]:
    """Before a call that clips. scaler: an enabled one is watched. forwards: passes since the last backward."""
    if f.by_hand:
        return
    new = f.new
    if not new and (not f.held or all(f.index in b.used for b in f.held)):
        yield "clip-before-backward" if not f.attempts or forwards else "clip-after-step", site, ""
    if new and scaler and not f.unscaled and all(b.scaled for b in new):
        yield "clip-before-unscale", site, ""
    if any(c.site == site and c.held < len(f.held) for c in f.clips) and one_loop(new):
        yield "clip-every-micro-batch", site, ""


def at_step(f: Follower, site: Site | None, direct: bool, ranks: int) -> Iterator[Found]:
    """When an optimizer steps on what its gradients hold. direct: past the scaler that is watched."""
    new = f.new
    if direct and any(b.scaled for b in new):
        yield "step-past-scaler", site, ""
    if not f.by_hand:
        yield from clearing(f, new, site)
        if len(f.inside) < 2:  # a closure that is called again and again
            yield from accumulation(f, new)
        for b in new:
            if b.half and not b.scaled and abs(b.weight.product) <= 1:
                yield "fp16-without-scaler", b.site, ""
                break
    if ranks > 1:
        yield from synchronisation(new)
    moves = f.scheduled[-1:]
    if new and moves and moves[0].held == len(new) and len(f.scheduled) == 1:
        yield "schedule-before-step", moves[0].site, ""
    yield from keeping(f, new)


def clearing(f: Follower, new: list[Backward], site: Site | None) -> Iterator[Found]:
    dropped = [(b, where) for b, where in f.dropped if finite(b.loss)]
    if not f.held and dropped and len(dropped) == len(f.dropped):
        yield "zero-before-step", dropped[-1][1] or site, ""
    if new and any(f.index in b.used for b in f.held):
        yield "zero-grad-missing", site, ""
    if not new or f.dropless or f.length is not None or {b.site for b, _ in dropped} != {new[-1].site}:
        return
    # Once may be a guard that skips; losses that are divided, or as many the time before, are micro-batches.
    if f.dropped_last == len(dropped) or all(0 < b.weight.product < 1 for b in [*new, *(b for b, _ in dropped)]):
        yield "zero-grad-in-window", dropped[-1][1] or new[-1].site, f"{len(dropped)} of {len(dropped) + len(new)} lost"


def accumulation(f: Follower, new: list[Backward]) -> Iterator[Found]:
    """Weights of the losses against their number."""
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
    n = f.length
    if n and k != n and all(close(p, 1 / n) for p in products):
        if k < n:
            yield "remainder-underscaled", new[0].site, f"{k} micro-batches, each weighed 1/{n}"
        elif k < 2 * n:
            yield "remainder-left", new[0].site, f"{k} micro-batches, each weighed 1/{n}"


def one_loop(new: list[Backward]) -> bool:
    """Whether these are micro-batches: the same line again, each after a forward pass of its own."""
    return len(new) > 1 and len({b.site for b in new}) == 1 and all(b.forwards for b in new)


def finite(loss: Any) -> bool:
    return loss is None or math.isfinite(float(loss))


def close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-4)


def synchronisation(new: list[Backward]) -> Iterator[Found]:
    if new and new[-1].synced is False:
        yield "no-sync-on-the-last", new[-1].site, ""
    elif one_loop(new) and all(b.synced for b in new):
        yield "no-sync-missing", new[0].site, f"{len(new)} times"


def keeping(f: Follower, new: list[Backward]) -> Iterator[Found]:
    if len(f.tokens) == KEPT and all(any(ref() is not None for ref in refs) for refs in f.tokens):
        yield "loss-kept-with-graph", new[-1].site if new else None, ""
    if new:
        f.tokens.append([b.token for b in new if b.token is not None])
        del f.tokens[:-KEPT]


def at_schedule(f: Follower, schedule: int, site: Site | None) -> Iterator[Found]:
    """When a schedule moves. Once between two steps is right, with a backward pass in between twice is not."""
    before = [m for m in f.scheduled if m.schedule == schedule]
    if before and before[-1].held < len(f.new):
        yield "schedule-every-micro-batch", site, ""


def at_unscale(f: Follower, site: Site | None) -> Iterator[Found]:
    if f.stage == "stepped":
        yield "update-missing", site, ""
    elif f.stage == "unscaled":
        again = "unscale-every-micro-batch" if f.unscaled_at < len(f.held) else "unscale-twice"
        yield (again if f.unscaled else "update-missing"), site, ""
