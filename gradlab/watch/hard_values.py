"""Values that enter a network, or a loss, without their gradient: an index, a comparison, a rounded or drawn number."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gradlab.watch.call_site import CallSite, call_site
from gradlab.watch.events import Violation
from gradlab.watch.followed_update import FLAT, tensors_in
from gradlab.watch.gradient_reads import GRADIENT
from gradlab.watch.optimizer_tracker import OptimizerTracker
from gradlab.watch.rules.reach import listed

EXPLICIT = {"detach", "detach_", "__get__", "__set__", "tensor", "as_tensor", "requires_grad_", "copy_", "clone"}
"""Functions that end a graph on purpose."""
SHAPES = ("_like", "empty", "zeros", "ones", "full", "size", "dim", "numel")
"""Ends of names of functions that ask a tensor for its shape."""
NETWORKS = {"linear", "matmul", "__matmul__", "mm", "bmm", "addmm", "einsum", "bilinear", "embedding", "embedding_bag"}
NETWORKS |= {"conv1d", "conv2d", "conv3d", "lstm", "gru", "rnn_tanh", "rnn_relu"}
"""Functions of weights and activations, or of weights and indices."""
SUMS = {"add", "__add__", "__radd__", "__iadd__", "sub", "__sub__", "__rsub__", "__isub__"}
EVERY = -1
"""The bits of all weights: those of a tensor of unknown origin."""
NONE: frozenset[int] = frozenset()


class HardValues:
    """Finds calls that return such values of one update, if these values go on where their gradient does not.

    They go on into weights of another network, or are a term of the loss, and whatever they were computed from gets a
    gradient of other terms alone. Nothing is said of values that meet what they were computed from again, as in a
    straight-through estimator, the logarithm of the probability of what was drawn, or a mask; nor of `detach()` and
    `no_grad()`, which are meant.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.weights: dict[int, int] = {}
        """id of a weight -> its bit."""
        self.names: list[str] = []
        self.live: Any = WeakTensorKeyDictionary()
        """Tensor with a graph -> bits of the weights in it."""
        self.hard: Any = WeakTensorKeyDictionary()
        """Tensor that passes no gradient -> numbers of the calls that its values come from, and if it has a graph."""
        self.through: Any = WeakTensorKeyDictionary()
        """Tensor with a graph -> numbers of the calls whose values went into it through weights, or as a term."""
        self.calls: list[tuple[CallSite | None, int]] = []
        """Line, and bits of the weights that its arguments were computed from."""
        self.tables = 0
        """Bits of the weights of which rows are picked."""
        self.met: set[int] = set()
        """Numbers of the calls whose values have met those weights again."""
        self.found: dict[int, int] = {}
        """Number of a call -> bits of the weights that other terms train."""
        self.drawn: bool | None = None
        """Where gradients are disabled: whether a distribution has done that."""

    def begin(self, tracker: OptimizerTracker, without: list[Tensor], flat: list[Tensor]) -> bool:
        self.forget()
        if tracker.attempts > 1:
            return False
        self.weights = {id(p): 1 << i for i, p in enumerate(tracker.params)}
        self.names = tracker.names
        return True

    def calls_of(self, tensor: Tensor) -> frozenset[int] | None:
        """Of a value without gradient; None of others, and where a function of the loop's own gave it a graph since."""
        known = self.hard.get(tensor)
        return None if known is None or known[1] != tensor.requires_grad else known[0]

    def bits(self, tensor: Tensor) -> int:
        """The weights that get a gradient through a tensor."""
        if not tensor.requires_grad or self.calls_of(tensor) is not None:
            return 0
        if (own := self.weights.get(id(tensor))) is not None:
            return own
        return int(self.live.get(tensor, 0 if tensor.is_leaf else EVERY))

    def follow(self, name: str, func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        if name == "_set_grad_enabled":
            self.drawn = None if args[0] else by_distribution() if self.drawn is None else self.drawn
        if name == "__get__" and func == GRADIENT:
            return
        inputs = tensors_in([*args, *kwargs.values()])
        outputs = tensors_in([args[0]] if name == "__setitem__" else [result])
        if not inputs or not outputs:
            return
        bits, hard, through = 0, frozenset[int](), frozenset[int]()
        for each in inputs:
            known = self.hard.get(each)
            if (
                known is not None and known[1] == each.requires_grad
            ):  # else a function of the loop's own gave it a graph
                hard |= known[0]
            else:
                bits |= EVERY if known is not None and not each.is_leaf else self.bits(each)
                through |= self.through.get(each, NONE)
        losses = all(each.ndim == 1 for each in inputs) and not hard  # of samples
        is_term = name in SUMS and (losses or all(each.numel() == 1 for each in inputs))
        if is_term and bits:
            through |= hard
        elif (hard or through) and bits:
            table = inputs[0] if is_lookup(name, inputs) else inputs[1] if name == "embedding" else None
            self.tables |= self.bits(table) if table is not None and hard else 0
            for i in (hard | through) - self.met:
                beside = [each for each in inputs if each is not table and i not in self.through.get(each, NONE)]
                if any(self.calls[i][1] & self.bits(each) for each in beside):
                    self.met.add(i)
            if name in NETWORKS or is_lookup(name, inputs):
                through |= hard
        elif hard and name in ("__getitem__", "index_select", "gather", "take_along_dim"):
            hard = self.calls_of(inputs[0]) or NONE  # data that are picked
        ends = bits and name not in EXPLICIT and not name.endswith(SHAPES) and not name.startswith("new_")
        meant = not torch.is_grad_enabled() and not self.drawn
        new = NONE
        for each in outputs:
            if each.requires_grad and name not in FLAT and (bits or not hard):
                self.live[each], self.through[each] = bits, through
                self.hard.pop(each, None)
                continue
            if ends and not meant and bits != EVERY and not new:
                self.calls.append((call_site(), bits))
                new = frozenset([len(self.calls) - 1])
            self.hard[each] = NONE if meant else hard | new, each.requires_grad

    def at_backward(self, roots: list[Tensor]) -> None:
        for root in roots:
            bits = self.bits(root)
            for i in self.through.get(root, NONE):
                if bits != EVERY and (others := bits & self.calls[i][1] & ~self.tables):
                    self.found[i] = others

    def end(self) -> Iterator[Violation]:
        for i in sorted(self.found.keys() - self.met)[:1]:
            names = [name for k, name in enumerate(self.names) if self.found[i] >> k & 1]
            yield "hard-value", self.calls[i][0], listed(names)
        self.forget()


def is_lookup(name: str, inputs: list[Tensor]) -> bool:
    """Whether rows of a weight are picked."""
    return name in ("__getitem__", "index_select", "gather") and inputs[0].is_leaf and inputs[0].requires_grad


def by_distribution() -> bool:
    """Whether gradients are being disabled by a distribution that draws."""
    frame: Any = sys._getframe(1)
    for _ in range(12):
        if frame is None:
            return False
        if frame.f_globals.get("__name__", "").startswith("torch.distributions"):
            return True
        frame = frame.f_back
    return False
