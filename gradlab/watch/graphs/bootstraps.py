"""Targets that a network makes for itself, as a reward and the value of the next state, and that are not detached."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from gradlab.watch.call_site import CallSite
from gradlab.watch.graphs.advantages import DIFFERENCES, LINEAR, SQUARES, inputs_of
from gradlab.watch.graphs.loss_graph import MAX_NODES, PRODUCTS, is_packed
from gradlab.watch.graphs.networks_between import weight_of
from gradlab.watch.readers.graph_sites import handed_site

CHOSEN = {f"{name}Backward{i}" for i in (0, 1) for name in ("Gather", "Max", "Amax", "Minimum", "Maximum", "Sum")}
PARTS = {f"{name}Backward{i}" for i in (0, 1) for name in ("Slice", "Select", "Index", "Unbind")}
LEAST = 0.5
"""Of a discount."""
MAX_PATHS = 200


@dataclass(frozen=True)
class Value:
    """The output of a network in the difference that is squared."""

    weight: int
    """id of the weight of its last layer."""
    part: Any
    """The node of the part of it that is taken, else of the product."""
    sign: int = 1
    discounted: bool = False
    """Whether it is multiplied by a constant between `LEAST` and 1, or by different ones for each sample."""
    site: CallSite | None = None


def bootstraps(roots: list[torch.Tensor]) -> dict[int, CallSite | None]:
    """id of the weight of a last layer -> the line that adds something to its discounted output, for a target."""
    queue: list[Any] = [root.grad_fn for root in roots if root.grad_fn is not None]
    seen = set(queue)
    found: dict[int, CallSite | None] = {}
    while queue and len(seen) < MAX_NODES:
        node = queue.pop()
        inputs = [each for each, _ in node.next_functions]
        square = node.name() == "MulBackward0" and len(inputs) == 2 and inputs[0] is inputs[1] is not None
        if node.name() in SQUARES or square:
            sides = inputs if "Loss" in node.name() else inputs[:1]
            if all(each is not None for each in sides):
                found |= of_difference(sides)
        elif node.name() in LINEAR:
            below = [each for each in inputs if each is not None and each not in seen]
            queue += below
            seen |= set(below)
    return found


def of_difference(sides: list[Any]) -> dict[int, CallSite | None]:
    """Two outputs of one network, of which one is discounted and part of a sum with a constant."""
    walk = Walk()
    values = [each for i, side in enumerate(sides) for each in walk.values(side, Value(0, None, (-1) ** i))]
    targets = [each for each in values if each.discounted]
    return {
        target.weight: walk.sum_site or target.site
        for target in targets
        for other in values
        if walk.has_constant and not other.discounted
        if other.weight == target.weight and other.sign == -target.sign and other.part is not target.part
    }


class Walk:
    """Down the graph of a difference, to the products of the networks in it."""

    def __init__(self) -> None:
        self.has_constant = False
        """Whether a constant is added, as a reward is."""
        self.sum_site: CallSite | None = None
        self.num_paths = 0

    def values(self, node: Any, so_far: Value) -> Iterator[Value]:
        self.num_paths += 1
        if node is None or self.num_paths > MAX_PATHS:
            return
        name, inputs = node.name(), [each for each, _ in node.next_functions]
        if name in PRODUCTS:
            for weight in [w for each in inputs if each is not None and (w := weight_of(each)) is not None][-1:]:
                yield replace(so_far, weight=id(weight), part=so_far.part or node)
        elif name == "MulBackward0":
            if inputs.count(None) == 1:
                discounted = so_far.discounted or is_discount(node)
                yield from self.values(next(filter(None, inputs)), replace(so_far, discounted=discounted))
        elif name in DIFFERENCES or name == "AddBackward0":
            if len(inputs) < 2 or None in inputs:
                self.has_constant = True
                self.sum_site = self.sum_site or handed_site(node, inputs)
            for i, each in enumerate(inputs):
                minus = name in DIFFERENCES and (i == 0) == (name != "SubBackward0")
                yield from self.values(each, replace(so_far, sign=-so_far.sign if minus else so_far.sign))
        elif name == "NegBackward0":
            yield from self.values(inputs[0], replace(so_far, sign=-so_far.sign))
        elif name in LINEAR or name in CHOSEN or name in PARTS:
            part = so_far.part or (node if name in PARTS else None)
            for each in inputs_of(node):
                yield from self.values(each, replace(so_far, part=part))


def is_discount(node: Any) -> bool:
    """Whether the constant of a product may be one."""
    if is_packed(node):
        return False
    first, _ = node.next_functions[0]
    try:
        constant = node._saved_other if first is not None else node._saved_self
    except (RuntimeError, AttributeError):
        return False
    if constant is None or constant.numel() > 1:
        return constant is not None
    return constant.device.type == "cpu" and LEAST <= constant.item() < 1 and math.isfinite(constant.item())
