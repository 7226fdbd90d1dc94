"""The two halves of an update: judge and measure the gradients before the step, and record the update after it."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from gradlab.watch.call_site import CallSite, format_site
from gradlab.watch.loop_state import LoopState
from gradlab.watch.rules import accumulation, averages, calls, eval_mode, reach
from gradlab.watch.tracking.followers import CHECKED
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

CHECK_PARAMETERS_EVERY = 5
"""Updates between two checks of which parameters are trained."""


def before_step(
    loop: LoopState,
    tracker: OptimizerTracker,
    site: CallSite | None,
    by_scaler: bool | None,
    weights_unmoved: bool = True,
) -> None:
    """Judge and measure the gradients of a step. by_scaler: whether the scaler makes it; None without a scaler."""
    ask, reads_all = loop.seen.ask, not loop.seen.is_off(loop.reads)
    followed = loop.end_followed(tracker) and loop.reads.following and reads_all
    if loop.followers.before and ask(loop.followers.before_step, tracker) and reads_all:
        constant = ask(loop.followers.constant, tracker, default=[])
        loop.add_violations(tracker, averages.at_check(tracker, constant, loop.reads.writes, loop.reads.run))
    tracker.cut_site = ask(loop.cuts.site_of, tracker) if loop.cuts.found else None
    metrics = loop.outputs[tracker.index].metrics
    alone = len(loop.trackers) == 1 and loop.ddp is None and by_scaler is None and not loop.seen.stray_clips
    if alone and weights_unmoved and tracker.is_regular:
        tracker.note_step(site, loop.seen.num_backwards, loop.backward_depth > 0)
        loop.add_violations(tracker, calls.kept_graphs(tracker, tracker.accumulated))
    else:
        judge_step(loop, tracker, site, by_scaler, weights_unmoved)
        accumulation.note_thrown(tracker)
        if followed and tracker.thrown.updates > accumulation.THROWN and not loop.reads.seen:
            b, zeroed_at = tracker.thrown.latest[-1]
            detail, update = (
                f"none is left of the loss of {format_site(b.site)}",
                tracker.attempts + 2 - tracker.thrown.updates,
            )
            loop.add_fault("zero-before-step", zeroed_at or b.site, tracker, detail, update=update)
    fused = getattr(tracker.optimizer, "grad_scale", None)
    scale = fused if isinstance(fused, Tensor) else loop.scaler.in_gradients(tracker)
    metrics.note_present(refilled=bool(tracker.unused))
    metrics.measure(scale, weights_unmoved=weights_unmoved and not tracker.closure.given)
    stage = tracker.scaling
    if by_scaler and stage.left_scaled and tracker.writes.since_step and len(stage.norms) < calls.CLIPPED:
        norm = math.nan if metrics.norm is None else float(metrics.norm)
        loop.add_violations(tracker, calls.clipped_by_hand(tracker, norm, float(loop.scaler.value())))
    if loop.not_finite.is_asking:
        ask(loop.not_finite.at_step, tracker, metrics.norm, metrics.before_writes.get("backward/norm"))
    if "clip/after" in metrics.clipping:
        metrics.clipping = {"clip/after": metrics.gradients().total}


def judge_step(
    loop: LoopState, tracker: OptimizerTracker, site: CallSite | None, by_scaler: bool | None, weights_unmoved: bool
) -> None:
    """Apply all rules about a step; see `before_step`."""
    if weights_unmoved:  # else the step is detected late, and its gradients may be gone
        tracker.note_step(site, loop.seen.num_backwards, loop.backward_depth > 0)
        tracker.others.note_through(tracker.index, tracker.unused)
        reach.note_clips_for_others(tracker, loop.trackers)
        loop.add_violations(tracker, eval_mode.at_step(tracker, loop.models, loop.modes))
        loop.add_violations(tracker, reach.at_step(tracker, loop.trackers, site, loop.seen))
    world_size = loop.world_size if loop.ddp is not None else 1
    loop.add_violations(tracker, calls.at_step(tracker, site, by_scaler, world_size, loop.no_sync))
    only = tracker.attempts or len(loop.trackers) == 1  # another optimizer's first pass may still be in fp16
    if by_scaler and not loop.fp16 and only:
        loop.add_violations(tracker, calls.needless_scale(tracker.unused))


def after_step(loop: LoopState, tracker: OptimizerTracker, skipped: Any) -> None:
    """Record an update that was attempted, or abandoned. skipped: as far as it is known on the host."""
    lr = tracker.optimizer.param_groups[0]["lr"]
    lr = lr.detach().clone() if isinstance(lr, Tensor) else lr
    tracker.rates.note(tracker.optimizer, tracker.attempts)
    metrics = loop.outputs[tracker.index].metrics
    own = tracker.own
    losses = [b.loss for b in own if not any(first in own for first in b.repeats)]
    if tracker.writes.since_step:  # the loop has made the gradients of those of other losses too
        losses = [b.loss for b, _ in accumulation.finite_dropped(tracker)] + losses + tracker.functional
    loss = tracker.closure.passes[0].loss if len(tracker.closure.passes) > 1 else total_loss(losses)
    if loop.running is not None and not tracker.accumulated:  # a hook on the parameters steps during the backward pass
        loss = loop.running.loss
    if metrics.norm is not None:
        metrics.stepped(loss, lr, skipped)
    tracker.attempts += 1
    tracker.stepped()
    if tracker.attempts == CHECKED[0]:
        for look in (loop.statistics.after_step, *loop.on_check):
            loop.seen.ask(look, tracker)
    loop.follow_update(tracker)
    if tracker.attempts % CHECK_PARAMETERS_EVERY == 0 and tracker.parameters_changed():
        loop.update_parameters(tracker)


def total_loss(losses: list[Any]) -> Any:
    """Their sum; None if one of them is unknown."""
    return None if not losses or any(value is None for value in losses) else sum(losses[1:], losses[0])
