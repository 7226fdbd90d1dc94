"""Matrices of the similarities of outputs, which a loss over classes is given: whether the labels fit them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gradlab.watch.graphs.advantages import below
from gradlab.watch.graphs.loss_graph import is_packed, variable

SQUARE = 4
"""Outputs of a batch at least that are compared with each other."""
RARE = 0.05
"""Share of rows that may be otherwise."""
NEAR = 32
"""Nodes between such a comparison and its loss at most."""
ROUNDED = 2e-2
"""The same of numbers of 16 bits."""
VIEWS = (
    "ToCopy",
    "View",
    "ReshapeAlias",
    "UnsafeView",
    "Squeeze",
    "Unsqueeze",
    "Select",
    "Slice",
    "T",
    "Transpose",
    "Permute",
)
"""Beginnings of the names of nodes that pass values on."""


SHIFTS = ("Add", "Sub", "Mul", "Div", "Neg", "Where", "MaskedFill", "Index", "Clamp", "Clone", "Cat", "Stack")
"""The same of those that change logarithms of probabilities to others: by priors, weights or masks."""


def all_of(condition: Tensor) -> bool:
    return bool(condition.all())


def similarities(given: Tensor, target: Tensor) -> str:
    """Of logits that compare each output of a batch with each of another, or the same: whether the labels fit them."""
    if given.dim() != 2 or len(given) != given.shape[1] or target.dim() != 1 or len(given) < SQUARE:
        return ""
    if other_partners(given.detach(), target):
        return "its labels are not the other views: each row of its input is most like the one half a batch away"
    product = compared(given)
    if product is None:
        return ""
    if are_normalised(product, 0) and not are_normalised(product, 1):
        return "its input compares outputs that are normalised over the samples, and not each by itself"
    sides = [below_views(each) for each, _ in product.next_functions]
    views = bool(below(sides[0])[0] & below(sides[1])[0])  # of one network, and no classes
    if views and all_of(target == target[0]):
        return f"its input compares {len(given)} outputs with as many others, and all labels are {int(target[0])}"
    itself = given.detach().diagonal()
    own = sides[0] is sides[1] and all_of(target != torch.arange(len(target), device=target.device))
    if own and all_of(itself.isfinite()) and all_of(itself >= given.detach().amax(1)):
        return "each row of its input has the similarity of an output with itself, which is the largest and no answer"
    return ""


def other_partners(given: Tensor, target: Tensor) -> bool:
    """Of the similarities of 2n outputs with each other, the first n and the others of two views: whether nearly each
    is most similar to the same one of the other half, and nearly no label says so."""
    size, half = len(given), len(given) // 2
    if size < 2 * SQUARE or size % 2 or not all_of(target.sort()[0] == torch.arange(size, device=target.device)):
        return False
    apart = given.float().clone().fill_diagonal_(-math.inf)
    if not torch.allclose(apart, apart.T, rtol=1e-3, atol=1e-4):
        return False
    partner = (torch.arange(size, device=given.device) + half) % size
    alike = (apart.argmax(1) == partner).float().mean().item()
    return alike > 1 - RARE and (target == partner).float().mean().item() < RARE


def compared(given: Tensor) -> Any:
    """The node of the product that a matrix comes from, if both of its operands are outputs that have a gradient."""
    queue: list[Any] = [given.grad_fn] if given.grad_fn is not None else []
    for node in queue:
        if node.name().startswith(("CatBackward", "IndexBackward")):
            return None  # rows may be in another order than the outputs
        if node.name() in ("MmBackward0", "BmmBackward0"):
            sides = [below_views(each) for each, _ in node.next_functions]
            return None if any(each is None or variable(each) is not None for each in sides) else node
        if node.name().startswith(tuple(f"{name}Backward" for name in (*VIEWS, *SHIFTS))):
            queue += [each for each, _ in node.next_functions if each is not None and len(queue) < NEAR]
    return None


def are_normalised(product: Any, dim: int) -> bool:
    """Whether the norms of both operands along a dimension are 1. dim: 0 of the samples, 1 of their features."""
    if is_packed(product):
        return False
    one, two = (each.detach().squeeze(0) for each in (product._saved_self, product._saved_mat2))
    if not one.dim() == two.dim() == 2:
        return False
    norms = one.norm(dim=dim), two.norm(dim=1 - dim)
    return all(all_of((each.float() - 1).abs() < ROUNDED) for each in norms)


def below_views(node: Any) -> Any:
    while node is not None and node.name().startswith(tuple(f"{name}Backward" for name in VIEWS)):
        node = node.next_functions[0][0]
    return node
