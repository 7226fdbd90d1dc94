"""Weights whose gradient is exactly zero in every update: the call behind which it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gradlab.watch.call_site import CallSite, call_site
from gradlab.watch.events import Violation
from gradlab.watch.followed_update import FOLLOWED, tensors_in
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker, listed

LEAST = 20
"""Updates in which they must not move."""
MAX_KEPT = 4_000_000
"""Elements of weights that are copied."""
NONE: Uses = frozenset()
PRODUCTS = {"mul", "__mul__", "__rmul__"}

Uses = frozenset[tuple[int, int]]
"""Ids of weights, and the numbers of the calls that they are arguments of."""
Zero = list[Tensor]
"""Whether each gradient that came was zero: () tensors, read when the update is over."""


@dataclass
class Call:
    """A call on the way from such weights to the loss."""

    site: CallSite | None
    inputs: list[tuple[Uses, Zero]]
    """For each argument with a graph: the uses of weights in it, and its gradients."""
    outputs: list[Zero]
    is_elementwise: bool
    """Whether each element comes from one element with a graph, as of a function of one number."""


class ZeroGradients:
    """Follows the gradients of such weights back through the calls of one update."""

    def __init__(self) -> None:
        self.flat: set[int] = set()
        """ids of weights whose gradient was zero in the first update."""
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}
        """id -> weight, and a copy of it."""
        self.ends: dict[int, CallSite | None] = {}
        """id of a weight -> the line behind which its gradient is zero."""
        self.handles: list[Any] = []
        """Of the hooks on tensors."""
        self.forget()

    def forget(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles = []
        self.weights: dict[int, Tensor] = {}
        self.reach: Any = WeakTensorKeyDictionary()
        """Tensor -> uses of the weights in its graph."""
        self.zero: Any = WeakTensorKeyDictionary()
        """Tensor -> whether its gradients were zero."""
        self.calls: list[Call] = []

    def begin(self, tracker: OptimizerTracker, without: list[Tensor], flat: list[Tensor]) -> bool:
        """They were zero in two updates: weights behind others that begin at zero have a gradient in the second."""
        self.forget()
        if tracker.attempts == 1:
            self.flat = {id(p) for p in flat}
        if tracker.attempts != FOLLOWED[1]:
            return False
        self.weights = {id(p): p for p in flat if id(p) in self.flat and p.requires_grad}
        if sum(p.numel() for p in self.weights.values()) > MAX_KEPT:
            self.weights = {}
        self.kept |= {key: (p, p.detach().clone()) for key, p in self.weights.items()}
        return bool(self.weights)

    def follow(self, name: str, func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        outputs = [each for each in tensors_in([result]) if each.requires_grad]
        inputs = [each for each in tensors_in([*args, *kwargs.values()]) if each.requires_grad]
        if not outputs or not inputs or name == "backward" or not torch.is_grad_enabled():
            return
        if name == "__get__" and not outputs[0]._is_view():  # .T is one, and .grad is none
            return
        reached = [self.reached_by(each) for each in inputs]
        if not any(reached):
            return
        off = name in PRODUCTS and any(is_off(each) for each in args)
        before = [(r, self.gradients_of(each)) for r, each in zip(reached, inputs, strict=True) if r]
        for each in outputs:
            self.reach[each] = NONE if off else NONE.union(*reached)
        if not off:
            one = len(inputs) == 1 and all(each.shape == inputs[0].shape for each in outputs)
            self.calls.append(Call(call_site(), before, [self.gradients_of(each) for each in outputs], one))

    def reached_by(self, tensor: Tensor) -> Uses:
        own = id(tensor) in self.weights
        return frozenset([(id(tensor), len(self.calls))]) if own else self.reach.get(tensor, NONE)

    def gradients_of(self, tensor: Tensor) -> Zero:
        if tensor not in self.zero:
            self.zero[tensor] = zero = []
            self.handles.append(tensor.register_hook(lambda g: zero.append(~g.detach().any())))
        return self.zero[tensor]  # type: ignore[no-any-return]

    def at_backward(self, roots: list[Tensor]) -> None:
        pass

    def end(self) -> Iterator[Violation]:
        """The latest call that gets a gradient which is not zero, and passes zero on to the weights."""
        found: dict[int, list[Call]] = {}
        for call in self.calls:
            if any(is_zero(each) is False for each in call.outputs):
                for key in {key for uses, zero in call.inputs if is_zero(zero) for key, _ in uses}:
                    found.setdefault(key, []).append(call)
        for key, calls in found.items():
            join = next((call for call in self.calls if len(calls) > 1 and joins(call, key)), None)
            # A loss of differences gives the last bias none.
            if self.weights[key].dim() > 1 or (len(calls) == 1 and calls[0].is_elementwise):
                self.ends[key] = (join or calls[-1]).site
        self.forget()
        yield from ()

    def at_end(self, tracker: OptimizerTracker, others: set[int]) -> Iterator[Violation]:
        """Of weights that have not moved when the watch is over. others: ids of those whose graph ends."""
        sites: dict[CallSite | None, list[Tensor]] = {}
        for key, site in self.ends.items() if tracker.attempts >= LEAST else ():
            if key in tracker.ids and key not in others and is_still(*self.kept[key]):
                sites.setdefault(site, []).append(self.kept[key][0])
        for site, weights in sites.items():
            yield "zero-gradient", site, listed([tracker.name_of(p) for p in weights])


def is_off(factor: Any) -> bool:
    """Whether a factor is a constant zero: what it multiplies is switched off."""
    if isinstance(factor, Tensor):
        return not factor.requires_grad and factor.numel() > 0 and not factor.any()
    return isinstance(factor, (int, float)) and factor == 0


def joins(call: Call, key: int) -> bool:
    """Whether gradients of several uses of a weight, none of them zero, come from this call: they cancel."""
    each = [{use for use in uses if use[0] == key} for uses, zero in call.inputs if is_zero(zero) is False]
    whole = set[tuple[int, int]]().union(*each)
    return len(whole) > 1 and all(part != whole for part in each)


def is_zero(gradients: Zero) -> bool | None:
    """Whether all gradients that came were zero; None if none came."""
    return all(bool(each) for each in gradients) if gradients else None


def is_still(weight: Tensor, before: Tensor) -> bool:
    """Whether a weight has not moved, but for weight decay; that moves a single number, which may come back."""
    now, size = weight.detach(), before.norm()
    if torch.equal(now, before) or before.numel() == 1:
        return torch.equal(now, before)
    return bool(size > 0 and torch.allclose(now, before * (now.norm() / size), rtol=1e-4))
