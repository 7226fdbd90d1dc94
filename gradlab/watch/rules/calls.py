"""Rules about single calls: clipping, backward passes, unscaling, reductions over ranks, and steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from gradlab.codes.clip_bounds import extreme, tight
from gradlab.watch.call_site import CallSite, format_site
from gradlab.watch.events import BackwardPass, Violation
from gradlab.watch.keeping_lines import keeping_line
from gradlab.watch.order_sites import is_scaled, writing_line
from gradlab.watch.rules.accumulation import close, divided_by_hand_too, is_window, loss_weights, zeroing
from gradlab.watch.tracking import moved_weights
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

LOOKS = 3
"""Passes at moved weights that add to a gradient."""
CLIPPED, TINY = 4, 1e-3
"""Steps at which gradients have the same norm, and a norm that nobody clips true gradients to."""
KEPT_GRAPHS = 4
"""Updates in a row whose graphs are all alive: then the losses are kept with their graphs."""


def at_clip(tracker: OptimizerTracker, site: CallSite | None, scaling: bool, num_forwards: int) -> Iterator[Violation]:
    """Before a call that clips. scaling: a scaler is enabled. num_forwards: passes since the last backward."""
    if tracker.writes.since_step:
        return
    unused, accumulated = tracker.unused, tracker.accumulated
    if not unused and all(tracker.index in b.used_by for b in accumulated):
        yield "clip-before-backward" if not tracker.attempts or num_forwards else "clip-after-step", site, ""
    if unused and scaling and not tracker.scaling.unscaled and all(b.scaled for b in unused):
        yield "clip-before-unscale", site, ""
    if any(c.site == site and c.num_accumulated < len(accumulated) for c in tracker.clips) and is_window(
        unused, at_step=False
    ):
        yield "clip-every-micro-batch", site, ""


def at_bound(bound: float | None, site: CallSite | None, resnet: bool) -> Iterator[Violation]:
    """On the bound of a clip call; None: it clips by value. resnet: the model is a ResNet."""
    if bound is None:
        yield "clip-by-value", site, ""
    elif extreme(bound):
        yield "max-norm-extreme", site, f"{bound:g}"
    elif resnet and tight(bound):
        yield "resnet-clipped-tightly", site, f"{bound:g}"


def clipped_by_hand(tracker: OptimizerTracker, norm: float, scale: float) -> Iterator[Violation]:
    """At a step on scaled gradients that the loop has written to: are they brought to one norm each time, which is
    small beside the scale? norm: of the true gradients."""
    norms = tracker.scaling.norms
    norms.append(norm * scale)
    alike = len(norms) == CLIPPED and math.isclose(min(norms), max(norms), rel_tol=1e-3)
    if alike and norm < TINY < norms[0]:
        site = writing_line(tracker.unused[-1].site if tracker.unused else tracker.step_site, is_scaled)
        yield "clip-before-unscale", site or tracker.step_site, f"they are brought to a norm of {norms[0]:.3g} by hand"


def at_single(tracker: OptimizerTracker, site: CallSite | None) -> Iterator[Violation]:
    """Before a call that clips one parameter: is it one of several for single tensors?"""
    same = [c for c in tracker.clips if c.site == site and c.num_accumulated == len(tracker.accumulated)]
    calls = len(same) + 1
    if calls == len(tracker.params) > 2:
        yield "clip-per-parameter", site, f"{calls} calls in an update"


def at_backward(
    tracker: OptimizerTracker, b: BackwardPass, in_autocast: bool, scale: Callable[[], Any] = lambda: 1.0
) -> Iterator[Violation]:
    """After a backward pass; `tracker.unused` are those before it. scale: the loss scale, which may be on a device."""
    if in_autocast:
        yield "backward-inside-autocast", b.site, ""
    unused, factors = tracker.unused, tracker.writes.factors
    if unused and tracker.index in unused[-1].weights:
        yield from looking_ahead(tracker, unused, b)
    if tracker.scaling.early_update_site and unused and b.scaled:
        yield "update-every-micro-batch", tracker.scaling.early_update_site, ""
    if factors and unused and b.num_forwards and b.site == unused[-1].site:
        site, detail = writing_line(b.site, is_scaled) or b.site, f"multiplied by {factors[0]:.3g} after backward"
        if b.scaled and close(factors[0] * float(scale()), 1):
            yield "unscale-every-micro-batch", site, detail
        elif not b.weight.factors:
            yield "gradients-scaled-by-hand", site, detail


def looking_ahead(tracker: OptimizerTracker, unused: list[BackwardPass], b: BackwardPass) -> Iterator[Violation]:
    """After a backward pass that adds to others, of which the weights at the time are known.

    A closure is called at weights that the optimizer chooses. Elsewhere a move along the gradient of all weights is
    the first of two passes; that of an embedding alone, or by noise, is another loss. Losses that are weighted are
    meant to be added.
    """
    if not math.isclose(sum(each.weight.product for each in unused), 1, rel_tol=1e-4) or tracker.writes.since_step:
        return
    before = unused[-1].weights[tracker.index]
    if moved_weights.have_moved(before) and (tracker.closure.running or moved_weights.moved_along(before)):
        tracker.num_looking_ahead += 1
        if tracker.num_looking_ahead >= LOOKS:
            yield "passes-at-moved-weights", b.site, f"the first is at {format_site(unused[-1].site)}"


def needless_scale(unused: list[BackwardPass]) -> Iterator[Violation]:
    """At a scaler's step in a loop in which nothing ran in fp16."""
    if not unused or not all(b.scaled and b.dtypes is not None for b in unused):
        return
    if any(torch.bfloat16 in (b.dtypes or ()) for b in unused):
        yield "bf16-with-scaler", unused[-1].site, ""
    else:
        yield "forward-outside-autocast", unused[-1].forward_site or unused[-1].site, ""


def follows(step: CallSite | None, check: CallSite | None) -> bool:
    """Whether a step comes after a check of the unscaled gradients: then it is one that the scaler would make."""
    return step is not None and check is not None and step[0] is check[0] and check[1] <= step[1]


def at_step(
    tracker: OptimizerTracker,
    site: CallSite | None,
    by_scaler: bool | None,
    world_size: int = 1,
    no_sync: CallSite | None = None,
) -> Iterator[Violation]:
    """When an optimizer steps.

    by_scaler: whether the scaler makes the step; None without a scaler. no_sync: call site of the latest `no_sync`.
    """
    unused = tracker.unused
    past = by_scaler is False and any(b.scaled for b in tracker.own)
    if past and not (tracker.scaling.unscaled and follows(site, tracker.skip_site)):
        yield "step-past-scaler", site, ""
    if not tracker.writes.since_step:
        yield from zeroing(tracker, unused, site)
        if len(tracker.closure.passes) < 2:  # a closure is called several times in a step
            yield from loss_weights(tracker, unused, site)
        for b in unused if not by_scaler else ():
            if b.fp16 and not b.scaled and abs(b.weight.product) <= 1:
                yield "fp16-without-scaler", b.site, ""
                break
    else:
        yield from divided_by_hand_too(tracker, unused)
    if world_size > 1 and not tracker.writes.since_step and not tracker.writes.reduced:
        yield from synchronization(tracker, unused, no_sync)
    steps = tracker.schedule_steps
    if unused and len(steps) == 1 and steps[0].num_unused == len(unused):
        yield "schedule-before-step", steps[0].site, ""
    yield from kept_graphs(tracker, unused)


def synchronization(
    tracker: OptimizerTracker, unused: list[BackwardPass], no_sync: CallSite | None
) -> Iterator[Violation]:
    if unused and unused[-1].synced is False:
        remainder = tracker.window is not None and len(unused) < tracker.window
        yield "remainder-unsynchronised" if remainder else "no-sync-on-the-last", no_sync or unused[-1].site, ""
    elif is_window(unused) and all(b.synced for b in unused):
        yield "no-sync-missing", unused[0].site, f"{len(unused)} times"


def kept_graphs(tracker: OptimizerTracker, unused: list[BackwardPass]) -> Iterator[Violation]:
    tokens = tracker.graph_tokens
    if len(tokens) == KEPT_GRAPHS and all(any(token() is not None for token in update) for update in tokens):
        site, kept = unused[-1].site if unused else None, keeping_line(unused[-1].site if unused else None)
        yield "loss-kept-with-graph", kept or site, f"it goes backward at {format_site(site)}" if kept and site else ""
    if unused:
        tokens.append([b.graph_token for b in unused if b.graph_token is not None])
        del tokens[:-KEPT_GRAPHS]


def at_unscale(tracker: OptimizerTracker, site: CallSite | None) -> Iterator[Violation]:
    """Before `scaler.unscale_`."""
    if tracker.scaling.overflow_abandoned:
        return
    if tracker.scaling.stage == "stepped":
        yield "update-missing", tracker.scaling.step_site, ""
    elif tracker.scaling.stage == "unscaled" and tracker.scaling.unscaled_at == len(tracker.accumulated):
        # A backward pass in between was reported when it ran.
        yield ("unscale-twice" if tracker.scaling.unscaled else "update-missing"), site, ""


def at_all_reduce(tracker: OptimizerTracker, site: CallSite | None) -> Iterator[Violation]:
    """Before the loop sums gradients over ranks itself."""
    if any(b.synced for b in tracker.unused):
        yield "reduced-by-hand-too", site, ""
