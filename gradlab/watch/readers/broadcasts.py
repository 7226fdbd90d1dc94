"""Losses whose prediction and target have as many elements, and shapes that broadcast against each other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import CodeType
from typing import Any

import torch
from torch import Tensor

from gradlab.watch.call_site import CallSite, call_site
from gradlab.watch.events import Violation
from gradlab.watch.graphs.loss_graph import MAX_NODES, PRODUCTS
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

ARITHMETIC = {
    f"{start}{name}{end}"
    for name in ("sub", "rsub", "mul", "rmul", "div", "truediv")
    for start, end in (("", ""), ("__", "__"))
}
LOSSES = {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "poisson_nll_loss", "gaussian_nll_loss", "kl_div"}
INNER = PRODUCTS | {"EmbeddingBackward0", "SoftmaxBackward0", "BaddbmmBackward0"}
"""Nodes below which is the model, and not the loss."""


class Broadcasts:
    """Reads the shapes of the terms of losses in one update.

    Meant are an `unsqueeze` of what the model returns, weights themselves, and what is done in a function that also
    sets all elements of one tensor against each other.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.found: list[tuple[Any, CallSite | None, str]] = []
        """Node of the result, line and shapes."""
        self.pairwise: set[CodeType] = set()
        """Functions that set the elements of one tensor against each other."""
        self.in_loss: list[tuple[CallSite | None, str]] = []
        """Of those that a loss depends on."""

    def begin(self, tracker: OptimizerTracker, without: list[Tensor], flat: list[Tensor]) -> bool:
        return tracker.attempts == 1

    def follow(self, name: str, func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        if name not in ARITHMETIC and name not in LOSSES:
            return
        if len(args) < 2 or not isinstance(args[0], Tensor) or not isinstance(args[1], Tensor):
            return
        one, two = args[:2]
        if one.dim() == two.dim() or one.numel() != two.numel() or one.numel() < 2:
            return
        if squeezed(one) != squeezed(two) or not grows(one, two) or not isinstance(result, Tensor):
            return
        site = call_site()
        live = one if one.requires_grad else two
        if one.requires_grad == two.requires_grad:
            self.pairwise |= {site[0]} if site is not None else set()
        elif result.grad_fn is not None and not live.is_leaf and not made_by_unsqueeze(live):
            shapes = f"{tuple(one.shape)} against {tuple(two.shape)}"
            self.found.append((result.grad_fn, site, shapes))

    def at_backward(self, roots: list[Tensor]) -> None:
        if not self.found:
            return
        nodes = above_the_model(roots)
        self.in_loss += [(site, shapes) for node, site, shapes in self.found if node in nodes]
        self.found = []  # a node keeps its graph

    def end(self) -> Iterator[Violation]:
        for site, shapes in self.in_loss:
            if site is None or site[0] not in self.pairwise:
                yield "loss-broadcast", site, shapes
        self.forget()


def squeezed(tensor: Tensor) -> list[int]:
    return [size for size in tensor.shape if size != 1]


def grows(one: Tensor, two: Tensor) -> bool:
    """Whether both are expanded."""
    try:
        return bool(math.prod(torch.broadcast_shapes(one.shape, two.shape)) > one.numel())
    except RuntimeError:
        return False


def made_by_unsqueeze(tensor: Tensor) -> bool:
    return type(tensor.grad_fn).__name__ == "UnsqueezeBackward0"


def above_the_model(roots: list[Tensor]) -> set[Any]:
    """Nodes between losses and the products of weights and activations."""
    queue: list[Any] = [root.grad_fn for root in roots if root.grad_fn is not None]
    seen = set(queue)
    while queue and len(seen) < MAX_NODES:
        node = queue.pop()
        inputs = {each for each, _ in node.next_functions if each is not None and each.name() not in INNER} - seen
        seen |= inputs
        queue += inputs
    return seen
