"""Backward passes: their losses, and the optimizers whose gradients they added to."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gradlab.watch.call_site import call_site
from gradlab.watch.events import BackwardPass
from gradlab.watch.graph_dtypes import GraphDtypes, new_compiled_forward
from gradlab.watch.instrumentation import Instrumentation
from gradlab.watch.loop_state import ForwardPasses, LoopState
from gradlab.watch.loss_graph import LossWeight, graph_token
from gradlab.watch.observers import compiled_steps
from gradlab.watch.optimizer_tracker import OptimizerTracker
from gradlab.watch.patches import AfterCall
from gradlab.watch.rules import calls


class BackwardObserver:
    """Observes `torch.autograd.backward`, which the method of every tensor calls."""

    def __init__(self, loop: LoopState) -> None:
        self.loop = loop
        self.dtypes = GraphDtypes()

    def install(self, instrumentation: Instrumentation) -> None:
        instrumentation.patch(torch.autograd, "backward", self.on_backward)

    def on_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AfterCall | None:
        """Activation checkpointing calls it within itself."""
        loop = self.loop
        loop.backward_depth += 1
        loop.num_backwards += loop.backward_depth == 1
        if loop.backward_depth > 1 or not loop.trackers:
            return self.after_nested
        self.finish_updates()
        b, in_autocast = self.describe(args[0] if args else kwargs.get("tensors"))
        forwards, loop.forwards, loop.running = loop.forwards, ForwardPasses(), b

        def after(result: Any, error: bool) -> None:
            loop.backward_depth, loop.running = loop.backward_depth - 1, None
            if isinstance(b.loss, Tensor) and b.loss.device.type == "cpu":
                b.loss = b.loss.item()
            for tracker in loop.trackers:
                now = tracker.versions()
                if now == tracker.seen_versions:
                    continue
                tracker.seen_versions, b.weight_versions[tracker.index] = now, tracker.weight_version
                if not error:
                    self.judge(tracker, b, forwards, in_autocast)
                self.record(tracker, b, error)

        return after

    def after_nested(self, result: Any, error: bool) -> None:
        self.loop.backward_depth -= 1

    def finish_updates(self) -> None:
        """A new backward pass begins: the metrics of the update before it are complete."""
        loop = self.loop
        for tracker, output in zip(loop.trackers, loop.outputs, strict=True):
            if not tracker.in_closure:
                compiled_steps.detect(loop, tracker)
                output.metrics.finish_update(loop.scaler.value())
                if tracker.started:  # its step has raised
                    output.metrics.start_update()
                    tracker.started = False
            if loop.fsdp1:
                tracker.accept_writes()
            else:
                tracker.detect_writes()

    def describe(self, tensors: Any) -> tuple[BackwardPass, bool]:
        """The pass that is about to run, and whether autocast is enabled."""
        loop, forwards = self.loop, self.loop.forwards
        roots = [tensors] if isinstance(tensors, Tensor) else list(tensors) if tensors is not None else []
        site = call_site()
        loss, weight, scaled = loop.scaler.unscaled_loss(roots[0]) if len(roots) == 1 else (None, LossWeight(), False)
        first = roots[0] if roots else loop.trackers[0].params[0]
        dtypes = self.dtypes.of(site, roots)
        b = BackwardPass(
            site,
            loss,
            weight,
            scaled,
            fp16=forwards.fp16 or (dtypes is not None and torch.float16 in dtypes),
            num_forwards=forwards.count or int(new_compiled_forward(roots)),
            forward_site=forwards.site,
            synced=loop.ddp.require_backward_grad_sync if loop.ddp is not None else None,
            num_scaler_updates=loop.scaler.num_updates,
            dtypes=dtypes,
            graph_token=graph_token(first),
        )
        loop.fp16 |= b.fp16
        return b, torch.is_autocast_enabled(first.device.type)

    def record(self, tracker: OptimizerTracker, b: BackwardPass, error: bool) -> None:
        output = self.loop.outputs[tracker.index]
        output.fp16 |= b.fp16
        tracker.accumulated.append(b)
        tracker.num_backwards += 1
        tracker.remember_gradient()
        tracker.state_versions = compiled_steps.state_versions(tracker)
        if tracker.in_closure:
            tracker.closure_passes.append(b)
            if len(tracker.closure_passes) == 1 and not error:  # before it is clipped, or the weights move
                output.metrics.measure(self.loop.scaler.in_gradients(tracker))

    def judge(self, tracker: OptimizerTracker, b: BackwardPass, forwards: ForwardPasses, in_autocast: bool) -> None:
        loop = self.loop
        if tracker.unscaled and b.scaled and tracker.accumulated and len(tracker.unused) == len(tracker.accumulated):
            norm = loop.outputs[tracker.index].metrics.norm
            overflow = tracker.overflow_abandoned = norm is not None and not math.isfinite(float(norm))
            name = "live-lock" if overflow else "unscale-every-micro-batch"
            loop.add_fault(name, b.site if overflow else tracker.unscale_site, tracker)
        loop.add_violations(tracker, calls.at_backward(tracker, b, in_autocast))
        if forwards.bypassed_ddp and b.num_forwards == 0:
            loop.add_fault("raw-module-called", forwards.bypassed_ddp, tracker)
        if loop.world_size > 1 and forwards.synced and b.synced is False:
            loop.add_fault("no-sync-around-backward-only", loop.no_sync or b.site, tracker)
