"""Derivatives by the input of a mean over samples, which are too small by their number, where their size matters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gradlab.watch.call_site import CallSite, call_site
from gradlab.watch.events import Violation
from gradlab.watch.followed_update import Reader, argument, tensors_in
from gradlab.watch.readers.class_losses import down
from gradlab.watch.readers.similarities import VIEWS as NODES
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

VIEWS = {"view", "reshape", "flatten", "squeeze", "unsqueeze", "__getitem__", "transpose", "permute", "neg", "__neg__"}
SIZES = {"norm", "vector_norm", "linalg_vector_norm", "square", "pow", "__pow__", "abs", "sqrt", "sum", "mean"}
"""Functions of a derivative that grow with it."""
ADDITIONS = {"add", "__add__", "__radd__"}
PRODUCTS = {"mul", "__mul__", "__rmul__"}
DIFFERENCES = {"sub", "__sub__", "rsub", "__rsub__"}
ERRORS = {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"}
SMALL = 1e-2
"""Of a number that is added: it keeps a root away from 0."""


@dataclass(frozen=True)
class Slope:
    """A derivative of a mean, or what was made of it."""

    site: CallSite | None
    point: Tensor
    samples: int
    order: int = 1
    """How many such means it is a derivative of, each of the one before."""
    moves: bool = False
    """Whether it was added to the input itself, which it may move."""
    is_size: bool = False
    """Whether it is a size, as a norm: a penalty of it has a weight, which makes up for the number."""


class MeanDerivatives(Reader):
    """Follows such derivatives of one update.

    Samples do not see each other: the derivative of a sum by one of them is that of its own output. A factor may make
    up for the number of a mean, as the rate does where an input is moved along its derivative, and the weight of a
    penalty. Nothing does where it is compared with something else as it is, or its norm with a number.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.slopes: Any = WeakTensorKeyDictionary()
        self.derived: Any = WeakTensorKeyDictionary()
        """Whatever was computed of a slope: of the same kind, as the moves of an input along several of them."""
        self.found: list[tuple[CallSite | None, str]] = []

    def begin(self, tracker: OptimizerTracker, without: list[Tensor], flat: list[Tensor]) -> bool:
        self.forget()
        self.tracker = tracker
        return tracker.attempts == 1

    def follow(self, name: str, func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        if func is torch.autograd.grad:
            self.note(args, kwargs, result)
            return
        if not self.derived or not isinstance(result, Tensor):
            return
        given = [each for each in args[:2] if isinstance(each, Tensor)]
        known = [each for each in given if each in self.derived]
        if known:
            self.derived[result] = True
        slopes = [self.slopes[each] for each in known if each in self.slopes]
        if len(slopes) == 2 and name in ADDITIONS | DIFFERENCES | ERRORS and slopes[0].order != slopes[1].order:
            self.find(max(slopes, key=lambda each: each.order))
        if len(known) != 1 or not slopes:
            return
        slope, number = slopes[0], next((each for each in args[:2] if isinstance(each, (int, float))), None)
        if name in VIEWS or (name in PRODUCTS and number is not None and abs(number) < slope.samples / 2):
            self.slopes[result] = slope
        elif slope.moves and name in SIZES | ERRORS:
            self.find(slope)
        elif name in SIZES:
            self.slopes[result] = replace(slope, is_size=True)
        elif name in ADDITIONS and number is not None and abs(number) < SMALL:
            self.slopes[result] = slope
        elif result.requires_grad and matters(name, slope, given, known[0], number):
            self.find(slope)
        elif name in ADDITIONS | DIFFERENCES and result.requires_grad and len(given) == 2 and not slope.is_size:
            self.slopes[result] = replace(slope, moves=True)

    def find(self, slope: Slope) -> None:
        words = f"of a mean over {slope.samples} samples: each has 1/{slope.samples} of its own"
        self.found.append((slope.site, words))

    def note(self, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        """At a call of `torch.autograd.grad`."""
        outputs = tensors_in([argument(args, kwargs, 0, "outputs")])
        points = tensors_in([argument(args, kwargs, 1, "inputs")])
        node: Any = outputs[0].grad_fn if len(outputs) == 1 else None
        if node is None or not node.name().startswith("MeanBackward") or outputs[0].numel() != 1:
            return
        samples = next(iter(node._saved_self_sym_sizes), 1)
        for point, slope in zip(points, result, strict=False):
            alike = point.dim() and len(point) == samples > 1 and id(point) not in self.tracker.ids
            if alike and isinstance(slope, Tensor):
                before = next((self.slopes[each] for each in self.slopes if made_of(node, each)), None)
                order = 1 if before is None else before.order + 1
                self.slopes[slope], self.derived[slope] = Slope(call_site(), point.detach(), samples, order), True

    def end(self) -> Iterator[Violation]:
        yield from (("derivative-of-mean", *each) for each in self.found[:1])
        self.forget()


def made_of(mean: Any, slope: Tensor) -> bool:
    """Whether a mean is one of a derivative, or of a part of it."""
    return slope.grad_fn is not None and down(mean, ("Mean", *NODES)) is slope.grad_fn


def matters(name: str, slope: Slope, given: list[Tensor], own: Tensor, number: float | None) -> bool:
    """Whether a sum or difference asks for the size that a derivative has. own: the operand that is made of it."""
    if slope.is_size or len(given) < 2:
        return slope.is_size and name in DIFFERENCES and number is not None and abs(number) >= SMALL
    other = (given[1] if given[0] is own else given[0]).detach()
    moved = other.shape == slope.point.shape and torch.equal(other, slope.point)
    return name in ADDITIONS | DIFFERENCES | ERRORS and own.numel() > 1 and not moved and bool(other.any())
