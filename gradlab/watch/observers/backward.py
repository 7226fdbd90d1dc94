"""Backward passes: their losses, and the optimizers whose gradients they added to."""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor

from gradlab.watch.call_site import CallSite, call_path, call_site
from gradlab.watch.events import BackwardPass, ForwardPasses
from gradlab.watch.followed_update import tensors_in
from gradlab.watch.graphs.advantages import Advantages, Places
from gradlab.watch.graphs.bootstraps import bootstraps
from gradlab.watch.graphs.comparisons import Comparison, comparisons, contrasted
from gradlab.watch.graphs.graph_dtypes import GRAPHS_PER_SITE, GraphDtypes, new_compiled_forward
from gradlab.watch.graphs.loss_graph import (
    graph_token,
    holds_scaled,
    node_below_factors,
    nodes_below,
    target_size,
    terms_of,
    variable,
)
from gradlab.watch.graphs.networks_between import Between, NetworksBetween, foreign_gradients, is_opposed
from gradlab.watch.graphs.reversals import Reversals
from gradlab.watch.graphs.scaled_gradients import ScaledGradients
from gradlab.watch.instrumentation import Instrumentation
from gradlab.watch.loop_state import LoopState
from gradlab.watch.observers import compiled_steps
from gradlab.watch.observers.asked_gradients import AskedGradients, number
from gradlab.watch.patches import AfterCall
from gradlab.watch.rules import calls
from gradlab.watch.tracking.constant_answers import label_counts
from gradlab.watch.tracking.early_freezes import EARLY
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

ARGUMENTS = ("tensors", "grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs")
"""Of `torch.autograd.backward`."""
TARGETS_EVERY, OFTEN = 8, 512
"""Of one of so many passes the targets are looked at, and after so many of one of four times as many."""
COUNTED = 64
"""Backward passes whose targets are counted also where none is accumulated."""

Graph = tuple["set[torch.dtype] | None", Places, bool, Places, list[Comparison], Between]
"""Floating point types, and `BackwardPass.advantages`, `is_policy`, `bootstraps`, `comparisons` and `between`."""


class BackwardObserver:
    """Observes `torch.autograd.backward`, which the method of every tensor calls."""

    def __init__(self, loop: LoopState) -> None:
        self.loop = loop
        self.dtypes = GraphDtypes()
        self.networks = NetworksBetween()
        self.advantages = Advantages()
        self.reversals = Reversals(loop.seen)
        self.scaled = ScaledGradients()
        self.holding: dict[CallSite | None, list[bool]] = {}
        """For each line, whether a scaled loss was part of what the first passes there began at."""
        self.graphs: dict[tuple[CallSite | None, int], tuple[int, Graph]] = {}
        """For each line and number of optimizers, how many graphs were read, and what they show."""
        self.followed: set[CallSite | None] = set()
        """Lines of which a graph was read in an update that was followed: the lines of its nodes are known."""
        self.below: Any = None
        """The node of the loss that is given, without its factors."""
        self.asked = AskedGradients(loop, self.scaled)

    def install(self, instrumentation: Instrumentation) -> None:
        instrumentation.patch(torch.autograd, "backward", self.on_backward)
        self.asked.install(instrumentation)
        checkpointed = getattr(torch.utils.checkpoint, "_CheckpointFrame", None)
        instrumentation.patch(checkpointed, "__init__", self.loop.not_finite.on_checkpoint)

    def on_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AfterCall | None:
        """Activation checkpointing calls it within itself."""
        loop = self.loop
        loop.backward_depth += 1
        loop.seen.num_backwards += loop.backward_depth == 1
        if loop.backward_depth > 1 or not loop.trackers:
            return self.after_nested
        self.finish_updates()
        loop.seen.stray_clips.clear()
        given = dict(zip(ARGUMENTS, args, strict=False)) | kwargs
        roots = tensors_in([given.get("tensors")])
        for tracker in loop.trackers:
            tracker.given_gradients |= given.get("grad_tensors") is not None
        loop.followed.at_backward(roots)
        b, in_autocast = self.describe(roots)
        scale = loop.scaler.tensor
        found = loop.seen.ask(self.scaled.at_backward, b.site, roots, scale) if scale is not None else None
        if found is not None:
            detail = "gradients of the scaled loss go into it, undivided"
            loop.add_fault("loss-scaled-twice", found, loop.trackers[0], detail)
        elif b.scaled and loop.scaler.is_among(b.weight.factors):
            loop.add_fault("loss-scaled-twice", b.weight.site or b.site, loop.trackers[0], "once by hand")
        b.plain &= given.get("grad_tensors") is None  # what is given there may be scaled
        if given.get("inputs") is not None:
            loop.seen.ask(self.asked.note_part, b.site, roots, {id(p) for p in tensors_in([given["inputs"]])})
        elif given.get("grad_tensors") is None:
            self.find_repeats(b, roots)
        self.below = None  # it keeps its graph
        forwards, loop.forwards, loop.running = loop.forwards, ForwardPasses(), b
        before = [foreign_gradients(tracker) for tracker in loop.trackers] if len(loop.trackers) > 1 else []
        unheld = loop.unheld.before(loop.seen.num_backwards)
        every = TARGETS_EVERY if loop.seen.num_backwards <= OFTEN else 4 * TARGETS_EVERY
        looked = bool(roots) and loop.seen.num_backwards % every == 1
        ask = loop.seen.ask
        size = ask(target_size, roots[0]) if looked else None
        terms = len(ask(terms_of, roots[0].grad_fn, default=[])) if looked and roots[0].grad_fn is not None else None
        if looked:
            ask(self.reversals.ask, roots, loop.followed.guarded)
        labels = ask(label_counts, roots[0], b.weight) if looked and len(roots) == 1 else None

        def after(result: Any, error: bool) -> None:
            loop.backward_depth, loop.running = loop.backward_depth - 1, None
            loop.unheld.after(unheld)
            for tracker in loop.trackers:
                if tracker.others.replaced or (now := tracker.versions()) == tracker.seen_versions:
                    continue
                tracker.seen_versions = now
                tracker.left.note_refilled()
                tracker.note_weights(b)
                if before and before[tracker.index]:
                    tracker.others.num_opposed += is_opposed(before[tracker.index])
                if not error:
                    self.judge(tracker, b, forwards, in_autocast)
                self.record(tracker, b, error)
                tracker.targets.note(size, terms)
                if looked:
                    tracker.constant.note(labels, b.weight)

        return after

    def find_repeats(self, b: BackwardPass, roots: list[Tensor]) -> None:
        """Was a backward pass of the whole of this loss made before? Remembered at its node in the graph."""
        if len(roots) != 1:
            return
        if roots[0].grad_fn is None:
            ids = {id(p) for tracker in self.loop.trackers for p in tracker.params}
            self.loop.seen.leaf_site = None if id(roots[0]) in ids else b.site
            return
        below: Any = self.below
        passes = below.metadata.setdefault("gradlab_passes", [])
        b.repeats = [first for reference in passes if (first := reference()) is not None]
        passes.append(weakref.ref(b))
        below.metadata.setdefault("gradlab_used_by", []).append(b.used_by)
        for term in terms_of(below):
            b.stepped_terms.update(*term.metadata.get("gradlab_used_by", ()))
            known = [reference() for reference in term.metadata.get("gradlab_passes", ())]
            b.extends += [each for each in known if each is not None]
            term.metadata.setdefault("gradlab_used_by", []).append(b.used_by)

    def is_plain(self, site: CallSite | None, roots: list[Tensor]) -> bool:
        """Whether no term of an unscaled loss was scaled."""
        if not self.loop.scaler.num_scale_calls:
            return True
        read = self.holding.setdefault(site, [])
        if len(read) < GRAPHS_PER_SITE:
            read.append(holds_scaled(roots))
        return not any(read)

    def after_nested(self, result: Any, error: bool) -> None:
        self.loop.backward_depth -= 1

    def finish_updates(self) -> None:
        """A new backward pass begins: the metrics of the update before it are complete."""
        loop = self.loop
        for tracker, output in zip(loop.trackers, loop.outputs, strict=True):
            if not tracker.closure.running and not tracker.others.replaced:
                compiled_steps.detect(loop, tracker)
                output.metrics.finish_update(loop.scaler.value())
                if tracker.started:  # its step has raised
                    output.metrics.start_update()
                    tracker.started = False
            if loop.fsdp1:
                tracker.accept_writes()
            else:
                tracker.detect_writes()

    def describe(self, roots: list[Tensor]) -> tuple[BackwardPass, bool]:
        """The pass that is about to run, and whether autocast is enabled."""
        loop, forwards, path = self.loop, self.loop.forwards, call_path()
        site = path[0][:2] if path else call_site()
        n = loop.seen.num_backwards
        loop.scaler.counts_targets = n <= COUNTED or any(tracker.accumulates for tracker in loop.trackers)
        loss, weight, scaled = loop.scaler.total(roots)
        loss = number(loss)
        if not loop.scaler.num_scale_calls and not loop.fsdp1 and not loop.trackers[0].sharded:
            read = self.graphs.get((site, len(loop.trackers)))
            loop.seen.ask(loop.not_finite.ask, site, roots, loss, read is None or read[0] < GRAPHS_PER_SITE)
        first = roots[0] if roots else loop.trackers[0].params[0]
        self.below = node_below_factors(first.grad_fn)
        dtypes, advantages, is_policy, bootstrapped, compared, between = self.graph(site, roots)
        b = BackwardPass(
            site,
            loss,
            weight,
            scaled,
            plain=not scaled and dtypes is not None and abs(weight.product) <= 1 and self.is_plain(site, roots),
            fp16=forwards.fp16 or (dtypes is not None and torch.float16 in dtypes),
            num_forwards=forwards.count or int(new_compiled_forward(roots)),
            forward_site=forwards.site,
            synced=loop.ddp.require_backward_grad_sync if loop.ddp is not None else None,
            num_scaler_updates=loop.scaler.num_updates,
            dtypes=dtypes,
            path=path,
            graph_token=graph_token(self.below),
            advantages=advantages,
            is_policy=is_policy,
            bootstraps=bootstrapped,
            comparisons=compared,
            between=between,
            left_in_eval=forwards.left_in_eval - forwards.in_training,
        )
        loop.fp16 |= b.fp16
        return b, torch.is_autocast_enabled(first.device.type)

    def graph(self, site: CallSite | None, roots: list[Tensor]) -> Graph:
        """What the graphs of the first passes at a line show; nothing is read after these."""
        loop, key = self.loop, (site, len(self.loop.trackers))
        whole = loop.followed.tracker is not None and loop.followed.only is None
        followed = whole and site not in self.followed
        if (known := self.graphs.get(key)) is not None and known[0] >= GRAPHS_PER_SITE and not followed:
            return known[1]
        self.followed |= {site} if followed else set()
        ask, several = loop.seen.ask, len(loop.trackers) > 1
        nothing: tuple[Places, set[int], bool] = ({}, set(), False)
        advantages, regressed, is_policy = ask(self.advantages.of, site, roots, followed, default=nothing)
        loop.seen.regressed |= regressed
        ask(loop.unheld.note_terms, roots)
        loop.seen.contrasted |= ask(contrasted, roots, default=set())
        new = [tracker for tracker in loop.trackers if tracker.attempts < EARLY and not tracker.others.replaced]
        leaves = [variable(node) for node in nodes_below(root.grad_fn for root in roots if new)]
        for tracker in new:
            tracker.early_freezes.at_backward(set(tracker.all_names), [leaf for leaf in leaves if leaf is not None])
        between = ask(self.networks.of, site, roots, loop.trackers, default={}) if several else {}
        moved, compared = ask(bootstraps, roots, default={}), ask(comparisons, roots, default=[])
        graph = ask(self.dtypes.of, site, roots), advantages, is_policy, moved, compared, between
        self.graphs[key] = (known[0] if known else 0) + 1, graph
        return graph

    def record(self, tracker: OptimizerTracker, b: BackwardPass, error: bool) -> None:
        output = self.loop.outputs[tracker.index]
        output.fp16 |= b.fp16
        tracker.accumulates |= bool(tracker.accumulated)
        tracker.is_policy |= b.is_policy
        tracker.divided_at = b.weight.site or tracker.divided_at
        tracker.accumulated.append(b)
        tracker.num_backwards, tracker.backward_site = tracker.num_backwards + 1, b.site
        tracker.remember_gradient()
        if tracker.writes.ever:
            output.metrics.measure_before_writes(b.site)
        tracker.state_versions = compiled_steps.state_versions(tracker)
        if tracker.closure.running:
            tracker.closure.dropped = []
            tracker.closure.passes.append(b)
            if len(tracker.closure.passes) == 1 and not error:  # before it is clipped, or the weights move
                output.metrics.measure(self.loop.scaler.in_gradients(tracker))

    def judge(self, tracker: OptimizerTracker, b: BackwardPass, forwards: ForwardPasses, in_autocast: bool) -> None:
        loop = self.loop
        unused = tracker.accumulated and len(tracker.unused) == len(tracker.accumulated)
        if tracker.scaling.unscaled and b.scaled and unused:
            norm = loop.outputs[tracker.index].metrics.norm
            overflow = tracker.scaling.overflow_abandoned = norm is not None and not math.isfinite(float(norm))
            name = "live-lock" if overflow else "unscale-every-micro-batch"
            loop.add_fault(name, tracker.skip_site or b.site if overflow else tracker.scaling.unscale_site, tracker)
        if in_autocast or tracker.accumulated:
            loop.add_violations(tracker, calls.at_backward(tracker, b, in_autocast, loop.scaler.value))
        if forwards.bypassed_ddp and b.num_forwards == 0:
            loop.add_fault("raw-module-called", forwards.bypassed_ddp, tracker)
        if forwards.synced and b.synced is False and loop.world_size > 1:
            loop.add_fault("no-sync-around-backward-only", loop.no_sync or b.site, tracker)
