"""What a pitfall changes in the gradient and the weights, against the correct update, tried from the same state."""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from gradlab.base import randomness
from gradlab.pitfalls.base import Pitfall, name_of
from gradlab.update.recorder import NOTHING, Recorder
from gradlab.update.stats import MicroBatch, Stats
from gradlab.update.step import Update


class Compared(NamedTuple):
    """Two vectors, each a list of tensors."""

    ratio: float
    """||wrong|| / ||right||."""
    cosine: float
    distance: float
    """||wrong - right|| / ||right||."""


def compare(wrong: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> Compared:
    """In float64, with one wait for the device. Infinite where `right` is zero, NaN where both are."""
    a, b = (torch.cat([t.double().flatten() for t in tensors]) for tensors in (wrong, right))
    pairs = torch.stack([a.norm(), b.norm(), a @ b, (a - b).norm()])
    of_wrong, of_right, product, apart = pairs.tolist()
    return Compared(over(of_wrong, of_right), over(product, of_wrong * of_right), over(apart, of_right))


def over(a: float, b: float) -> float:
    """a / b, as IEEE has it."""
    return a / b if b else math.nan if not a or math.isnan(a) else math.inf


class Tried(NamedTuple):
    """One update that was run."""

    stats: Stats
    used: list[torch.Tensor]
    """The gradients that the optimizer stepped with; zeros if it did not."""
    moved: list[torch.Tensor]
    """The change of the weights."""
    all_reduces: int


class Impact:
    """Runs the updates of a run with a pitfall; every `measure_every`-th is compared with the correct update."""

    def __init__(self, pitfall: Pitfall, update: Update) -> None:
        self.pitfall, self.update = pitfall, update
        self.all_reduces = 0
        self.seen: dict[str, list[float]] = {}
        if update.world.size > 1:
            update.model.register_comm_hook(None, self.count)

    def __call__(self, window: Sequence[MicroBatch], recorder: Recorder) -> tuple[Stats, dict[str, float]]:
        """One wrong update, recorded; where it was compared, with its metrics."""
        every = self.pitfall.measure_every
        if not every or self.update.attempts % every:
            return self.update(window, recorder), {}
        with self.undone(), self.righted():
            right = self.tried(window)
        wrong = self.tried(window, recorder)
        metrics = measured(wrong, right)
        if self.update.world.size > 1:
            metrics["pitfall/all_reduces"] = float(wrong.all_reduces)
        for name, value in metrics.items():
            self.seen.setdefault(name, []).append(value)
        return wrong.stats, metrics

    def tried(self, window: Sequence[MicroBatch], recorder: Recorder = NOTHING) -> Tried:
        update, before = self.update, self.all_reduces
        weights = [p.detach().clone() for p in update.params]
        used: list[torch.Tensor] = []

        def look(optimizer: Any, *args: Any) -> None:  # registered last, so that it sees the result of deferred work
            in_kernel = getattr(optimizer, "found_inf", None)
            if in_kernel is None or not in_kernel.item():
                used.extend(torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in update.params)

        handle = update.optimizer.register_step_pre_hook(look)
        try:
            stats = update(window, recorder)
        finally:
            handle.remove()
        moved = [p.detach() - w for p, w in zip(update.params, weights, strict=True)]
        return Tried(stats, used or [torch.zeros_like(w) for w in weights], moved, self.all_reduces - before)

    @contextmanager
    def righted(self) -> Iterator[None]:
        """The update with its correct method."""
        name = self.pitfall.replaces
        wrong = vars(self.update).pop(name)
        try:
            yield
        finally:
            setattr(self.update, name, wrong)

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Start without gradients; afterwards restore bitwise all that an update changes, and leaked gradients."""
        update = self.update
        tensors = [*update.params, *update.module.buffers()]
        values = [t.detach().clone() for t in tensors]
        leaked = [None if p.grad is None else p.grad.clone() for p in update.params]
        state, halted, random = copy.deepcopy(update.state_dict()), update.halted, randomness.all_random_state()
        for p in update.params:
            p.grad = None
        try:
            yield
        finally:
            with torch.no_grad():
                for tensor, value in zip([*update.params, *update.module.buffers()], values, strict=True):
                    tensor.copy_(value)
            for p, grad in zip(update.params, leaked, strict=True):
                p.grad = grad
            update.load_state_dict(state)
            update.halted = halted
            randomness.set_random_state(random)

    def count(self, state, bucket):  # type: ignore[no-untyped-def]  # DDP does not accept annotations that are strings
        """DDP's communication hook: its usual all-reduce, counted once a round, however many buckets that takes."""
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        self.all_reduces += bucket.is_last()
        return allreduce_hook(state, bucket)

    def summary(self) -> str:
        """What was measured, in a sentence."""
        if not self.seen:
            return ""
        values = {name: [v for v in found if not math.isnan(v)] for name, found in self.seen.items()}
        shown = [f"{name.removeprefix('pitfall/')} {statistics.median(v):.4g}" for name, v in values.items() if v]
        if apart := values["pitfall/distance"]:
            shown.append(f"and at most {max(apart):.4g} of distance")
        number = max(map(len, self.seen.values()))
        text = f"pitfall {name_of('pitfall', self.pitfall)} against the correct update, medians of {number}"
        broken = sum(map(math.isnan, self.seen["pitfall/update_ratio"]))
        shown += [f"in {broken} of them the wrong update was not finite, or neither was applied"] * bool(broken)
        return f"{text}: {', '.join(shown)}"


def measured(wrong: Tried, right: Tried) -> dict[str, float]:
    """The metrics of one comparison. Where neither update was applied the ratios are NaN."""
    gradient, update = compare(wrong.used, right.used), compare(wrong.moved, right.moved)
    return {
        "pitfall/grad_ratio": gradient.ratio,
        "pitfall/grad_cosine": gradient.cosine,
        "pitfall/update_ratio": update.ratio,
        "pitfall/update_cosine": update.cosine,
        "pitfall/distance": update.distance,
        "pitfall/scale_ratio": over(wrong.stats.next_scale.item(), right.stats.next_scale.item()),
    }
