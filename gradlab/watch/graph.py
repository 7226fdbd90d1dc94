"""What a loss was multiplied with, read from the end of its graph before backward runs through it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch

THROUGH = {"CloneBackward0", "ToCopyBackward0", "ViewBackward0", "SqueezeBackward0", "UnsqueezeBackward0"}
"""Leave the number as it is."""
FACTORS = {"DivBackward0", "MulBackward0", "NegBackward0"}
DEEP = 32
"""Nodes that are followed at most."""
REDUCTIONS = {1: "mean", 2: "sum"}


@dataclass
class Weight:
    """factors: constants, outermost first; NaN for one that only the device knows. kind: mean, sum or other."""

    factors: list[float] = field(default_factory=list)
    kind: str = "other"
    scaled: int = 0
    """How often the loss scale is among them; it does not count as a factor."""
    count: float | None = None
    """Targets, or the sum of their weights, that a mean was taken over; None where that cannot be told for nothing."""

    @property
    def product(self) -> float:
        return math.prod(self.factors)


def weigh(loss: torch.Tensor, scale: torch.Tensor | None = None) -> Weight:
    """scale: the loss scale, told apart by where it lies in memory."""
    try:
        return follow(loss.grad_fn, scale, DEEP)
    except (RuntimeError, AttributeError, TypeError):  # saved tensors may be gone, or changed since
        return Weight()


def follow(node: Any, scale: torch.Tensor | None, deep: int) -> Weight:
    weight = Weight()
    while node is not None and deep > 0:
        deep -= 1
        name, following = node.name(), node.next_functions
        if name in ("DivBackward0", "MulBackward0"):
            constant, node = split(node, name, following)
            if constant is None:
                return weight
            if scale is not None and constant.data_ptr() == scale.data_ptr():
                weight.scaled += 1
                continue
            value = constant.item() if constant.device.type == "cpu" else math.nan
            weight.factors.append((1 / value if value else math.inf) if name[0] == "D" else value)
        elif name == "NegBackward0" or name in THROUGH:
            node = following[0][0]
        elif name == "AddBackward0":
            branches = [follow(n, scale, deep // 2) for n, _ in following if n is not None]
            return sum_of(weight, branches)
        else:
            weight.kind = kind(node, name)
            weight.count = count(node, weight.kind)
            return weight
    return weight


def split(node: Any, name: str, following: Any) -> tuple[torch.Tensor | None, Any]:
    """The constant of a product or quotient, and what it is applied to; None where there is no single constant."""
    (first, _), (second, _) = following
    if first is not None and second is None:
        constant = node._saved_other
    elif first is None and second is not None and name == "MulBackward0":
        constant, first = node._saved_self, second
    else:
        return None, None
    return (constant, first) if constant is not None and constant.numel() == 1 else (None, None)


def sum_of(weight: Weight, branches: list[Weight]) -> Weight:
    """Weights within a sum are the objective's own, unless all of it is weighed down."""
    kinds = {b.kind for b in branches}
    weight.kind = kinds.pop() if len(kinds) == 1 else "other"
    weight.scaled += min((b.scaled for b in branches), default=0)
    largest = max((abs(b.product) for b in branches), default=math.nan)
    if not largest > 0.5:
        weight.factors.append(largest)
    return weight


def kind(node: Any, name: str) -> str:
    if name.startswith("MeanBackward"):
        return "mean"
    if name.startswith("SumBackward"):
        return "sum"
    return REDUCTIONS.get(getattr(node, "_saved_reduction", None), "other")  # type: ignore[arg-type]


def count(node: Any, kind: str) -> float | None:
    total = getattr(node, "_saved_total_weight", None) if kind == "mean" else None
    return total.item() if total is not None and total.device.type == "cpu" else None


class Token:
    """Lives as long as what it hangs on."""

    __slots__ = ("__weakref__",)


def token(loss: torch.Tensor) -> Any:
    """A weak reference that is dead once the graph of a loss is gone; None where that cannot be had.

    It hangs below what a loss scale, a window or a trainer has made of the loss: whoever keeps it has it as it was
    before.
    """
    import weakref

    try:
        node: Any = own(loss.grad_fn)
        node.metadata["gradlab"] = mark = Token()
        return weakref.ref(mark)
    except (AttributeError, TypeError):
        return None


def own(node: Any) -> Any:
    """The node below factors and copies; that of a parameter is never gone, and is not the loss's."""
    while node is not None and (node.name() in THROUGH or node.name() in FACTORS):
        below = [n for n, _ in node.next_functions if n is not None]
        if len(below) != 1 or below[0].name() == "torch::autograd::AccumulateGrad":
            break
        node = below[0]
    return node
