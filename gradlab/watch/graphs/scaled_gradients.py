"""Gradients of a scaled loss that become a part of another scaled loss, as a penalty, without being divided by it."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from torch import Tensor

from gradlab.watch.call_site import CallSite
from gradlab.watch.graphs.advantages import inputs_of
from gradlab.watch.graphs.graph_dtypes import GRAPHS_PER_SITE
from gradlab.watch.graphs.loss_graph import IDENTITIES, SCALED, is_packed, split
from gradlab.watch.readers.hard_values import is_short

MARK = "gradlab_scaled_gradient"
"""Key of the line in the metadata of such a gradient's node."""
MIN_SCALE = 64.0
"""A smaller one may be meant."""
MAX_SAMPLES = 1e4
"""What is left of the scale at most by a factor that divides by it and multiplies by a number of samples."""
MAX_NODES = 256
DEGREES = dict.fromkeys(IDENTITIES, 1.0) | {
    f"{name}Backward{i}": degree
    for i in range(5)
    for name, degree in {
        **dict.fromkeys(("Add", "Sub", "Rsub", "Neg", "Mean", "Sum", "Norm", "LinalgVectorNorm", "Abs", "Relu"), 1.0),
        **dict.fromkeys(("ReshapeAlias", "UnsafeView", "Select", "Slice", "Stack", "Cat"), 1.0),
        "Sqrt": 0.5,
    }.items()
}
"""Node -> the power of a factor of its input by which its result grows."""


class ScaledGradients:
    """Marks such gradients, and looks for them in the first losses of each line that go backward after them."""

    def __init__(self) -> None:
        self.has_marked = False
        """Since the latest backward pass."""
        self.num_losses: Counter[CallSite | None] = Counter()
        """For each line, those that were looked at."""

    def mark(self, gradients: list[Tensor], site: CallSite | None) -> None:
        self.has_marked = True
        for each in gradients:
            if each.grad_fn is not None:
                each.grad_fn.metadata.update({MARK: site, SCALED: True})  # type: ignore[attr-defined]

    def at_backward(self, site: CallSite | None, roots: list[Tensor], scale: Tensor | None) -> CallSite | None:
        marked, self.has_marked = self.has_marked, False
        if not marked or scale is None or self.num_losses[site] >= GRAPHS_PER_SITE:
            return None
        self.num_losses[site] += 1
        return scaled_again(roots, scale)


def scaled_again(roots: list[Tensor], scale: Tensor) -> CallSite | None:
    """The line that makes such gradients, if a loss grows by a higher power of the scale than the first.

    Only nodes whose degree is known are passed. A factor that may divide by a power of the scale ends the search.
    """
    value = 0.0
    queue: list[tuple[Any, float, float]] = [(root.grad_fn, 1.0, 0.0) for root in roots if root.grad_fn is not None]
    seen = {each for each, *_ in queue}
    while queue and len(seen) < MAX_NODES:
        node, power, scaled = queue.pop()  # the powers that it has been raised to, and that the scale has above it
        if MARK in node.metadata:
            if scaled and scaled + power >= 2:
                return node.metadata[MARK]  # type: ignore[no-any-return]
            continue
        name, inputs = node.name(), inputs_of(node)
        if SCALED in node.metadata:
            scaled += power
        elif name in ("MulBackward0", "DivBackward0"):
            value = value or float(scale)
            if len(inputs) == 2 and inputs[0] is inputs[1] and name == "MulBackward0":
                power *= 2
            elif value < MIN_SCALE or may_divide(node, value):
                continue
        elif name == "PowBackward0" and not is_packed(node):
            power *= float(node._saved_exponent)
        elif name in DEGREES:
            power *= DEGREES[name]
        else:
            continue
        queue += [(each, power, scaled) for each in dict.fromkeys(inputs) if each not in seen]
        seen.update(inputs)
    return None


def may_divide(node: Any, scale: float) -> bool:
    """Whether a product or quotient takes a power of the scale away, maybe with a factor; also if that is unknown."""
    name = node.name()
    constant, _ = split(node, name, node.next_functions)
    if constant is None or constant.device.type != "cpu" or not (value := abs(float(constant))):
        return True
    factor = 1 / value if name == "DivBackward0" else value
    short = is_short(factor) or is_short(value)
    short &= factor >= 0.5 or math.frexp(factor)[0] != 0.5  # samples and scales are powers of two
    left = [factor * scale**power for power in (1, 2, 3)]
    return any(0.1 <= each <= 10 or (factor < 1 and not short and 1 <= each <= MAX_SAMPLES) for each in left)
