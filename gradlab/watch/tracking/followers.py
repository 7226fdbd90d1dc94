"""Weights that follow others between the steps of an optimizer, as averages of them do."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

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
    """Compares all parameters that exist, and tensors of their shapes, before and after what the loop does between two
    steps."""

    def __init__(self, trackers: Sequence[OptimizerTracker]) -> None:
        self.trackers = trackers
        self.places: list[Callable[[], torch.Tensor | None]] = []
        """What is compared: tensors, and the values of lists and dictionaries, which may be other tensors each time."""
        self.before: dict[int, list[tuple[int, torch.Tensor]]] = {}
        """Optimizer index -> numbers of places, and the elements there after its step."""
        self.found: dict[int, list[dict[int, Follower]]] = {}
        """Optimizer index -> for each check, number of a place -> how it follows."""

    def after_step(self, tracker: OptimizerTracker) -> bool:
        """Whether the next update is a check that needs the line at which weights are written."""
        if tracker.attempts not in CHECKED or tracker.sharded:
            return False
        if not self.places:
            shapes = {p.shape for t in self.trackers for p in t.params if p.numel() >= LEAST}
            states = {id(state) for t in self.trackers for state in t.optimizer.state.values()}
            self.places = list(places_of(gc.get_objects(), shapes, states))[:MOST]
        now = [(i, p) for i, place in enumerate(self.places) if (p := place()) is not None]
        self.before[tracker.index] = [(i, elements(p).clone()) for i, p in now]
        return tracker.attempts == CHECKED[-1] and all(self.found.get(tracker.index, [{}]))

    def before_step(self, tracker: OptimizerTracker) -> bool:
        """Before the next one; whether this was the last check."""
        if (kept := self.before.pop(tracker.index, None)) is None:
            return False
        now = [(i, p, old) for i, old in kept if (p := self.places[i]()) is not None]
        before = [(i, p, old) for i, p, old in now if alike(elements(p), old)]
        held = {id(p) for t in self.trackers for p in t.params}
        moved = flags([(old != elements(p)).any() for _, p, old in before])
        leaders: dict[torch.Size, list[torch.Tensor]] = {}
        for (_, p, _), has_moved in zip(before, moved, strict=True):
            if not has_moved:
                leaders.setdefault(p.shape, []).append(p)
        each = {
            i: follower(tracker, p, old, leaders.get(p.shape, ()), held)
            for (i, p, old), has_moved in zip(before, moved, strict=True)
            if has_moved
        }
        self.found.setdefault(tracker.index, []).append({i: f for i, f in each.items() if f is not None})
        if is_last := tracker.attempts == CHECKED[-1]:
            self.places = self.places if self.before else []  # lists and dictionaries are kept until then
        return is_last

    def constant(self, tracker: OptimizerTracker) -> Iterator[Follower]:
        """Weights that followed by the same share in all checks."""
        checks = self.found[tracker.index]
        for key in set.intersection(*map(set, checks)) if len(checks) == len(CHECKED) else ():
            rests = [1 - check[key].share for check in checks]
            if max(rests) < 1.05 * min(rests):
                yield checks[-1][key]


def places_of(
    objects: Sequence[Any], shapes: set[torch.Size], left_out: set[int]
) -> Iterator[Callable[[], torch.Tensor | None]]:
    """Parameters, and the values of lists and dictionaries of tensors that have the shapes of weights.

    Python's lists and dictionaries take no weak references: they are held until the last check. left_out: ids of those
    that are none of the loop's, as an optimizer's states of its parameters.
    """
    for each in objects:
        if type(each) is nn.Parameter and each.numel() >= LEAST and each.is_floating_point() and not each.is_meta:
            yield weakref.ref(each)
    for each in objects:
        if type(each) in (list, dict) and each and id(each) not in left_out:
            first = each[0] if type(each) is list else next(iter(each.values()))
            if type(first) is torch.Tensor and not first.requires_grad:
                pairs = list(enumerate(each) if type(each) is list else each.items())
                yield from (partial(value_at, each, key) for key, p in pairs if is_like_weights(p, shapes))


def value_at(holder: Any, key: Any) -> torch.Tensor | None:
    value = holder.get(key) if type(holder) is dict else holder[key] if key < len(holder) else None
    return value if type(value) is torch.Tensor else None


def is_like_weights(p: Any, shapes: set[torch.Size]) -> bool:
    return type(p) is torch.Tensor and p.shape in shapes and p.is_floating_point() and not p.requires_grad


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
