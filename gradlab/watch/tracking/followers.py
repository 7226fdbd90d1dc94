"""Weights that follow others between the steps of an optimizer, as averages of them do."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from gradlab.measure.attempt import flags
from gradlab.watch.output.update_metrics import elements
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

CHECKED = (24, 36, 48)
"""Updates after which weights are compared."""
LEAST = 8
"""Elements of which a weight is told from another one."""
MOST = 2000
"""Parameters that are compared at most."""
EXACT = 1e-2
"""Part of a move that may not be towards the other weight."""


@dataclass
class Follower:
    """A weight that was moved by a share of its distance to another one, which stayed."""

    weight: torch.Tensor
    share: float
    trained: bool
    """Whether it has a gradient, and the optimizer holds it."""
    leaders: set[int]
    """ids of the others, of which some may be copies of one."""
    is_held: bool
    """Whether an optimizer holds them; else nothing moves them."""


class Followers:
    """Compares all parameters that exist before and after what the loop does between two steps."""

    def __init__(self, trackers: Sequence[OptimizerTracker]) -> None:
        self.trackers = trackers
        self.existing: list[weakref.ref[torch.Tensor]] | None = None
        self.before: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        """Optimizer index -> parameters, and their elements after its step."""
        self.found: dict[int, list[dict[int, Follower]]] = {}
        """Optimizer index -> for each check, id of a weight -> how it follows."""

    def after_step(self, tracker: OptimizerTracker) -> bool:
        """Whether the next update is a check that needs the line at which weights are written."""
        if tracker.attempts not in CHECKED or tracker.sharded:
            return False
        if self.existing is None:
            known = [p for p in gc.get_objects() if type(p) is nn.Parameter and p.numel() >= LEAST][:MOST]
            self.existing = [weakref.ref(p) for p in known if p.is_floating_point() and not p.is_meta]
        params = [p for reference in self.existing if (p := reference()) is not None]
        self.before[tracker.index] = [(p, elements(p).clone()) for p in params]
        return tracker.attempts == CHECKED[-1] and all(self.found.get(tracker.index, [{}]))

    def before_step(self, tracker: OptimizerTracker) -> bool:
        """Before the next one; whether this was the last check."""
        if (before := self.before.pop(tracker.index, None)) is None:
            return False
        before = [(p, old) for p, old in before if alike(elements(p), old)]
        held = {id(p) for t in self.trackers for p in t.params}
        moved = flags([(old != elements(p)).any() for p, old in before])
        leaders: dict[torch.Size, list[torch.Tensor]] = {}
        for (p, _), has_moved in zip(before, moved, strict=True):
            if not has_moved:
                leaders.setdefault(p.shape, []).append(p)
        each = [
            follower(tracker, p, old, leaders.get(p.shape, ()), held)
            for (p, old), has_moved in zip(before, moved, strict=True)
            if has_moved
        ]
        self.found.setdefault(tracker.index, []).append({id(f.weight): f for f in each if f is not None})
        return tracker.attempts == CHECKED[-1]

    def constant(self, tracker: OptimizerTracker) -> Iterator[Follower]:
        """Weights that followed by the same share in all checks."""
        checks = self.found[tracker.index]
        for key in set.intersection(*map(set, checks)) if len(checks) == len(CHECKED) else ():
            rests = [1 - check[key].share for check in checks]
            if max(rests) < 1.05 * min(rests):
                yield checks[-1][key]


def alike(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether they can be compared: weights may be moved to another device, or emptied, between two steps."""
    return (one.shape, one.device, one.dtype) == (two.shape, two.device, two.dtype)


def follower(
    tracker: OptimizerTracker, p: torch.Tensor, old: torch.Tensor, leaders: Sequence[torch.Tensor], held: set[int]
) -> Follower | None:
    """Which of these weights was it moved to? One that is trained may also follow one that no optimizer holds."""
    move = (elements(p) - old).double()
    shares = {}
    for leader in leaders:
        if leader.device == p.device and (id(leader) in held or id(p) in tracker.ids):
            way = (elements(leader) - old).double()
            share = float(move @ way / (way @ way).clamp_min(1e-300))
            if 0 < share < 1 and float((move - share * way).norm()) < EXACT * float(move.norm()):
                shares[id(leader)] = share
    if not shares:
        return None
    trained = id(p) in tracker.ids and p.grad is not None and bool(p.grad.any())
    return Follower(p, next(iter(shares.values())), trained, set(shares), bool(held & shares.keys()))
