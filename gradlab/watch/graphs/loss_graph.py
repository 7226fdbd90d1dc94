"""The factors that a loss was multiplied by, read from the end of its autograd graph before the backward pass."""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from gradlab.watch.call_site import CallSite
from gradlab.watch.graphs.node_lines import site_of

IDENTITIES = {"CloneBackward0", "ToCopyBackward0", "ViewBackward0", "SqueezeBackward0", "UnsqueezeBackward0"}
"""Nodes that leave the value unchanged."""
FACTORS = {"DivBackward0", "MulBackward0", "NegBackward0"}
REGRESSIONS = {"MseLossBackward0", "SmoothL1LossBackward0", "HuberLossBackward0"}
PRODUCTS = {"AddmmBackward0", "MmBackward0", "BmmBackward0", "LinearBackward0", "ConvolutionBackward0"}
"""Nodes that multiply activations by weights."""
MAX_DEPTH = 32
"""Nodes that are followed at most."""
MAX_TERMS = 256
"""Terms of a sum that are looked at."""
STACKS = {"StackBackward0", "CatBackward0"}
MAX_NODES = 20_000
"""Nodes that are searched at most."""
REDUCTIONS = {1: "mean", 2: "sum"}
SCALED = "gradlab_scaled"
"""Key in the metadata of the node of a loss that was scaled, or of gradients of one."""


@dataclass
class LossWeight:
    """Constant factors of a loss, and how it was reduced to one number."""

    factors: list[float] = field(default_factory=list)
    """Outermost first; NaN for a constant on a device, which would have to be waited for."""
    reduction: str = "other"
    """mean, sum or other."""
    num_scales: int = 0
    """How often the loss scale is among the factors; it is not listed in `factors`."""
    count: float | None = None
    """Targets, or the sum of their weights, that a mean was taken over; None if unknown without waiting."""
    site: CallSite | None = None
    """Where the outermost factor is applied, in an update in which that is known."""

    @property
    def product(self) -> float:
        return math.prod(self.factors)


def loss_weight(loss: torch.Tensor, scale: torch.Tensor | None = None, counts: bool = True) -> LossWeight:
    """scale: the loss scale, recognized by its address in memory. counts: whether targets are counted."""
    try:
        return follow(loss.grad_fn, scale, MAX_DEPTH, counts)
    except (RuntimeError, AttributeError, TypeError):  # saved tensors may be freed, or changed since
        return LossWeight()


def follow(node: Any, scale: torch.Tensor | None, depth: int, counts: bool) -> LossWeight:
    weight = LossWeight()
    while node is not None and depth > 0:
        depth -= 1
        name = node.name()
        if name in ("DivBackward0", "MulBackward0"):
            node_of_factor = node
            constant, node = split(node, name, node.next_functions)
            if constant is None:
                return weight
            if scale is not None and constant.data_ptr() == scale.data_ptr():
                weight.num_scales += 1
                continue
            value = constant.item() if constant.device.type == "cpu" else math.nan
            weight.factors.append((1 / value if value else math.inf) if name[0] == "D" else value)
            weight.site = weight.site or site_of(node_of_factor)
        elif name == "NegBackward0" or name in IDENTITIES:
            node = node.next_functions[0][0]
        elif name == "AddBackward0":
            below = [term for term, _ in node.next_functions if term is not None]
            terms = [follow(term, scale, depth // 2, counts) for term in below]
            return weight_of_sum(weight, terms)
        else:
            weight.reduction = reduction_of(node, name)
            weight.count = target_count(node, weight.reduction) if counts else None
            return weight
    return weight


def split(node: Any, name: str, inputs: Any) -> tuple[torch.Tensor | None, Any]:
    """The constant of a product or quotient, and the node it is applied to; None if there is not one constant."""
    (first, _), (second, _) = inputs
    if is_packed(node):
        return None, None
    if first is not None and second is None:
        constant = node._saved_other
    elif first is None and second is not None and name == "MulBackward0":
        constant, first = node._saved_self, second
    else:
        return None, None
    return (constant, first) if constant is not None and constant.numel() == 1 else (None, None)


def weight_of_sum(weight: LossWeight, terms: list[LossWeight]) -> LossWeight:
    """Factors of single terms belong to the objective, unless every term is scaled down."""
    reductions = {term.reduction for term in terms}
    weight.reduction = reductions.pop() if len(reductions) == 1 else "other"
    weight.num_scales += min((term.num_scales for term in terms), default=0)
    largest = max((abs(term.product) for term in terms), default=math.nan)
    if not largest > 0.5:
        weight.factors.append(largest)
    return weight


def reduction_of(node: Any, name: str) -> str:
    if name.startswith("MeanBackward"):
        return "mean"
    if name.startswith("SumBackward"):
        return "sum"
    return REDUCTIONS.get(getattr(node, "_saved_reduction", None), "other")  # type: ignore[arg-type]


def target_count(node: Any, reduction: str) -> float | None:
    if reduction != "mean" or not hasattr(type(node), "_raw_saved_total_weight"):
        return None
    if node._raw_saved_total_weight.unpack_hook is not None:  # see is_packed; asked in every update
        return None
    total = node._saved_total_weight
    return total.item() if total is not None and total.device.type == "cpu" else None


def target_size(loss: torch.Tensor) -> torch.Tensor | None:
    """Mean square of the targets of a regression, a () tensor; None if the end of the graph shows none."""
    queue: list[Any] = [loss.grad_fn] if loss.grad_fn is not None else []
    for node in queue:
        if node.name() in REGRESSIONS:
            try:
                if is_packed(node):
                    return None
                target = node._saved_target.detach()
                return None if hasattr(target, "to_local") else target.float().square().mean()
            except (RuntimeError, AttributeError):
                return None
        if len(queue) < MAX_DEPTH:
            queue += [each for each, _ in node.next_functions if each is not None]
    return None


def is_packed(node: Any) -> bool:
    """Whether hooks hold what a node has saved, as in checkpointing and offloading.

    To ask for it would compute it again, or take away what the backward pass will ask for.
    """
    return any(getattr(getattr(node, name), "unpack_hook", None) is not None for name in saved_by(type(node)))  # type: ignore[arg-type]


@functools.cache
def saved_by(kind: Any) -> list[str]:
    """Names under which nodes of a class hold what they have saved."""
    return [name for name in dir(kind) if name.startswith("_raw_saved")]


class GraphToken:
    """An object in the metadata of a graph's node: it lives as long as the node."""

    __slots__ = ("__weakref__",)


def graph_token(node: Any) -> Any:
    """A weak reference that is dead once the graph of a loss is freed; None if the graph takes no token.

    node: below the factors that a loss scale, a window or a trainer has applied, since a loss that somebody keeps is
    usually the one before these.
    """
    try:
        node.metadata["gradlab"] = token = GraphToken()
        return weakref.ref(token)
    except (AttributeError, TypeError):
        return None


def mark_scaled(scaled: torch.Tensor) -> None:
    """Remember in its graph that a loss was scaled."""
    if scaled.grad_fn is not None:
        scaled.grad_fn.metadata[SCALED] = True  # type: ignore[index]


def holds_scaled(roots: list[torch.Tensor]) -> bool:
    """Whether a scaled loss is part of a graph; also if that is unknown, since the graph has too many nodes."""
    queue: list[Any] = [root.grad_fn for root in roots if root.grad_fn is not None]
    visited = set(queue)
    while queue and len(visited) <= MAX_NODES:
        node = queue.pop()
        if SCALED in node.metadata:
            return True
        inputs = {each for each, _ in node.next_functions if each is not None} - visited
        visited |= inputs
        queue += inputs
    return bool(queue)


def nodes_below(roots: Iterable[Any], ends: Container[str] = ()) -> Iterator[Any]:
    """Nodes (or None, which is left out) and all below them, each once; not those below nodes with the names `ends`."""
    queue = [node for node in roots if node is not None]
    seen = set(queue)
    while queue and len(seen) < MAX_NODES:
        node = queue.pop()
        yield node
        if node.name() not in ends:
            new = {each for each, _ in node.next_functions if each is not None} - seen
            seen |= new
            queue += new


def is_of_activations(node: Any) -> bool:
    """Whether it is computed from what a network returns, and not from weights alone."""
    return any(each.name() in PRODUCTS for each in nodes_below([node]))


def variable(node: Any) -> Any:
    """The parameter whose gradient a node accumulates; None of other nodes."""
    return getattr(node, "variable", None)


def node_below_factors(node: Any) -> Any:
    """The first node that is neither a factor nor an identity, and not a parameter's, which is never freed."""
    while node is not None and (node.name() in IDENTITIES or node.name() in FACTORS):
        inputs = [each for each, _ in node.next_functions if each is not None]
        if len(inputs) != 1 or inputs[0].name() == "torch::autograd::AccumulateGrad":
            break
        node = inputs[0]
    return node


def terms_of(node: Any) -> list[Any]:
    """The terms of a sum, or of the sum or mean of a stack, without their factors, and sums of a part of them."""
    found: list[Any] = []
    queue = [node]
    while queue and len(found) < MAX_TERMS:
        each = queue.pop()
        inputs = [below for below, _ in each.next_functions if below is not None]
        if each.name().startswith(("MeanBackward", "SumBackward")) and len(inputs) == 1:
            each = inputs[0]
            inputs = [below for below, _ in each.next_functions if below is not None]
            inputs = inputs if each.name() in STACKS else []
        elif each.name() != "AddBackward0":
            continue
        terms = [node_below_factors(below) for below in inputs]
        terms = [term for term in terms if term.name() != "torch::autograd::AccumulateGrad"]
        found += terms
        queue += terms
    return found
