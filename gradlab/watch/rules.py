"""What is wrong with what a loop does, where it can be told from what is right. Silence is the answer to doubt."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from gradlab.codes.bounds import extreme, tight
from gradlab.watch.events import Backward, Found
from gradlab.watch.follower import Follower
from gradlab.watch.where import Site
from gradlab.watch.windows import accumulation, cleared, clearing, one_loop

__all__ = ["Found", "at_backward", "at_bound", "at_clip", "at_step", "at_unscale", "cleared", "needless_scale"]

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


def at_bound(bound: float | None, site: Site | None, resnet: bool) -> Iterator[Found]:
    """Of a call that clips; None: by value. resnet: the model is one."""
    if bound is None:
        yield "clip-by-value", site, ""
    elif extreme(bound):
        yield "max-norm-extreme", site, f"{bound:g}"
    elif resnet and tight(bound):
        yield "resnet-clipped-tightly", site, f"{bound:g}"


def at_backward(f: Follower, b: Backward, in_autocast: bool) -> Iterator[Found]:
    """After a pass that added to gradients, which held `f.new` before."""
    if in_autocast:
        yield "backward-inside-autocast", b.site, ""
    if f.updated_site and f.new and b.scaled:
        yield "update-every-micro-batch", f.updated_site, ""
    if f.shrunk and f.new and b.forwards and b.site == f.new[-1].site and not b.weight.factors:
        yield "gradients-scaled-by-hand", b.site, f"multiplied by {f.shrunk[0]:.3g} after backward"


def needless_scale(new: list[Backward]) -> Iterator[Found]:
    """Of an optimizer whose scaler steps, in a loop in which nothing ran in fp16."""
    if not new or not all(b.scaled and b.types is not None for b in new):
        return
    if any(torch.bfloat16 in (b.types or ()) for b in new):
        yield "bf16-with-scaler", new[-1].site, ""
    else:
        yield "forward-outside-autocast", new[-1].forward or new[-1].site, ""


def at_step(
    f: Follower, site: Site | None, scaler: bool | None, ranks: int = 1, no_sync: Site | None = None
) -> Iterator[Found]:
    """When an optimizer steps on what its gradients hold.

    scaler: whether it is the scaler that steps; None: there is none. no_sync: where it was called last.
    """
    new = f.new
    if scaler is False and any(b.scaled for b in new):
        yield "step-past-scaler", site, ""
    if not f.by_hand:
        yield from clearing(f, new, site)
        if len(f.inside) < 2:  # a closure that is called again and again
            yield from accumulation(f, new, site)
        for b in new if not scaler else ():
            if b.half and not b.scaled and abs(b.weight.product) <= 1:
                yield "fp16-without-scaler", b.site, ""
                break
    if ranks > 1 and not f.by_hand and not f.reduced:
        yield from synchronisation(f, new, no_sync)
    moves = f.scheduled[-1:]
    if new and moves and moves[0].held == len(new) and len(f.scheduled) == 1:
        yield "schedule-before-step", moves[0].site, ""
    yield from keeping(f, new)


def synchronisation(f: Follower, new: list[Backward], no_sync: Site | None) -> Iterator[Found]:
    if new and new[-1].synced is False:
        short = f.length is not None and len(new) < f.length
        yield "remainder-unsynchronised" if short else "no-sync-on-the-last", no_sync or new[-1].site, ""
    elif one_loop(new) and all(b.synced for b in new):
        yield "no-sync-missing", new[0].site, f"{len(new)} times"


def keeping(f: Follower, new: list[Backward]) -> Iterator[Found]:
    if len(f.tokens) == KEPT and all(any(ref() is not None for ref in refs) for refs in f.tokens):
        yield "loss-kept-with-graph", new[-1].site if new else None, ""
    if new:
        f.tokens.append([b.token for b in new if b.token is not None])
        del f.tokens[:-KEPT]


def at_unscale(f: Follower, site: Site | None) -> Iterator[Found]:
    if f.locked:
        return
    if f.stage == "stepped":
        yield "update-missing", f.stepped_site, ""
    elif f.stage == "unscaled" and f.unscaled_at == len(f.held):  # what was added since was told when it was
        yield ("unscale-twice" if f.unscaled else "update-missing"), site, ""


def at_reduce(f: Follower, site: Site | None) -> Iterator[Found]:
    """Before gradients are summed over ranks by hand."""
    if any(b.synced for b in f.new):
        yield "reduced-by-hand-too", site, ""
