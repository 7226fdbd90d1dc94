"""Advantages that are not detached: the error of a value multiplies the policy's logarithm, and trains it too."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from gradlab.watch.call_site import CallSite
from gradlab.watch.graphs.graph_dtypes import GRAPHS_PER_SITE
from gradlab.watch.graphs.loss_graph import MAX_NODES, PRODUCTS, is_packed, nodes_below, variable
from gradlab.watch.graphs.networks_between import weight_of
from gradlab.watch.readers.graph_sites import handed_site

DIFFERENCES = {"SubBackward0", "RsubBackward1", "RsubBackward0"}
LINEAR = DIFFERENCES | {
    f"{name}Backward{i}"
    for i in (0, 1)
    for name in (
        *("Add", "Neg", "Div", "Mul", "Mean", "Sum", "Std", "Var", "Minimum", "Maximum", "Clamp", "Where", "Stack"),
        *("Cat", "View", "ReshapeAlias", "UnsafeView", "Squeeze", "Unsqueeze", "Select", "Slice", "Index", "Unbind"),
        *("Permute", "Transpose", "T", "Expand", "Clone", "ToCopy", "Alias", "Detach"),
    )
}
"""Nodes between a loss and its terms, and between an error and the value in it."""
SQUARES = {"PowBackward0", "MseLossBackward0", "SmoothL1LossBackward0", "HuberLossBackward0", "L1LossBackward0"}
LOGARITHMS = {"LogSoftmaxBackward0", "LogsumexpBackward0", "LogBackward0", "ExpBackward0", "PowBackward0"}
"""Of which one is in the probability of an action: of a Gaussian of fixed width the last."""
MAX_PRODUCTS = 16
"""Products with an error whose operands are read: an episode may have one a step."""

Heads = set[int]
"""ids of the weights of last layers."""
Places = dict[int, "CallSite | None"]
"""Such an id -> the line of the product, if it is known."""


class Advantages:
    """Reads the ends of the graphs of the first backward passes of each line."""

    def __init__(self) -> None:
        self.read: dict[CallSite | None, list[tuple[Places, Heads, bool]]] = {}

    def of(self, site: CallSite | None, roots: list[torch.Tensor], again: bool) -> tuple[Places, Heads, bool]:
        """Values whose error multiplies a logarithm that does not depend on it, values that are regressed, and whether
        logarithms are multiplied by constants of which some are negative, as by advantages: the level of such a loss
        says nothing."""
        read = self.read.setdefault(site, [])
        if len(read) < GRAPHS_PER_SITE or again:
            read.append(terms_of(roots))
        return read[-1]


def terms_of(roots: list[torch.Tensor]) -> tuple[Places, Heads, bool]:
    """Advantages and regressed values among the terms of a loss."""
    advantages: Places = {}
    regressed: Heads = set()
    is_policy = False
    queue: deque[Any] = deque(root.grad_fn for root in roots if root.grad_fn is not None)
    seen, num_products = set(queue), 0
    while queue and len(seen) < MAX_NODES:
        node = queue.popleft()  # those near the loss first: an entropy has products for each step of an episode
        inputs = inputs_of(node)
        if node.name() in SQUARES or (node.name() == "MulBackward0" and len(inputs) == 2 and inputs[0] is inputs[1]):
            regressed |= heads(inputs, "Loss" in node.name())
        elif node.name() == "MulBackward0" and len(inputs) == 2:
            for error, other in (inputs, inputs[::-1]):
                if num_products < MAX_PRODUCTS and (found := heads([error], False)):
                    num_products += 1
                    weights, logarithm = below(other)
                    if logarithm:
                        advantages |= dict.fromkeys(found - weights, handed_site(node, [error]))
        elif node.name() in LINEAR:
            is_policy |= node.name() == "MulBackward0" and has_negative_factor(node) and below(inputs[0])[1]
            queue += [each for each in inputs if each not in seen]
            seen |= set(inputs)
    return advantages, regressed, is_policy


def has_negative_factor(node: Any) -> bool:
    """Whether a product has a constant for each sample, of which some are negative."""
    if is_packed(node) or not inputs_of(node):
        return False
    try:
        constant = node._saved_other if node.next_functions[0][0] is not None else node._saved_self
        return constant is not None and constant.numel() > 1 and bool((constant < 0).any())
    except (RuntimeError, AttributeError):  # freed, or changed since
        return False


def inputs_of(node: Any) -> list[Any]:
    return [each for each, _ in node.next_functions if each is not None]


def heads(nodes: list[Any], is_error: bool) -> Heads:
    """Weights of the last layers below linear nodes; is_error: whether a difference was taken already."""
    found: Heads = set()
    queue = [(node, is_error) for node in nodes]
    seen: set[tuple[Any, bool]] = set()
    while queue and len(seen) < MAX_NODES:
        node, is_error = queue.pop()
        if (node, is_error) in seen:
            continue
        seen.add((node, is_error))
        inputs, name = inputs_of(node), node.name()
        if name in PRODUCTS:
            found |= {id(w) for each in inputs if is_error and (w := weight_of(each)) is not None}
        elif name in LINEAR and not (name == "MulBackward0" and len(inputs) == 2):
            queue += [(each, is_error or name in DIFFERENCES) for each in inputs]
    return found


def below(node: Any) -> tuple[Heads, bool]:
    """All weights that a node depends on, and whether a logarithm is among its operations."""
    nodes = list(nodes_below([node]))
    weights = {id(w) for each in nodes if (w := variable(each)) is not None}
    return weights, any(each.name() in LOGARITHMS for each in nodes)
