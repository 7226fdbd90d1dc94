"""Networks between a loss and another network, as a discriminator lies between a generator and its loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gradlab.watch.call_site import CallSite
from gradlab.watch.graphs.graph_dtypes import GRAPHS_PER_SITE
from gradlab.watch.graphs.loss_graph import MAX_NODES, PRODUCTS, is_packed, variable
from gradlab.watch.readers.graph_sites import handed_site
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

KEPT = ("_saved_mat2", "_saved_weight")
"""What products keep of a weight."""
VIEWS = {"TBackward0", "TransposeBackward0", "ViewBackward0", "PermuteBackward0", "ToCopyBackward0"}
"""Nodes between such a product and its weights."""
Between = dict[tuple[int, int], "CallSite | None"]
"""Pairs of optimizers, and the line that gives the network of the first what that of the second has made."""
OPPOSITE = -0.1
"""Cosine below which gradients are opposed."""
MEASURED = 3
"""Times that two gradients are compared: reading them waits for the device."""


class NetworksBetween:
    """Reads the graphs of the first backward passes of each line."""

    def __init__(self) -> None:
        self.read: dict[CallSite | None, list[Between]] = {}

    def of(self, site: CallSite | None, roots: list[torch.Tensor], trackers: Sequence[OptimizerTracker]) -> Between:
        """(V, U): weights of optimizer V lie between the loss and weights of optimizer U, and not also the reverse."""
        read = self.read.setdefault(site, [])
        if len(read) < GRAPHS_PER_SITE:
            owners = {id(p): tracker.index for tracker in trackers for p in tracker.params}
            places = {place(p): tracker.index for tracker in trackers for p in tracker.params}
            places.pop(0, None)
            read.append(networks_between(roots, owners, places))
        known = {pair: site for each in read for pair, site in each.items() if site is not None}
        return {pair: known.get(pair) for each in read for pair in each}


def networks_between(roots: list[torch.Tensor], owners: dict[int, int], places: dict[int, int]) -> Between:
    """owners, places: id of a parameter, and its address in memory -> index of its optimizer."""
    below: dict[Any, set[int]] = {}
    """Node -> optimizers whose parameters it reaches."""
    pairs: Between = {}
    stack = [(root.grad_fn, False) for root in roots if root.grad_fn is not None]
    while stack and len(below) < MAX_NODES:
        node, inputs_done = stack.pop()
        inputs = [each for each, _ in node.next_functions if each is not None]
        if not inputs_done and node not in below:
            below[node] = set()  # until its inputs are done
            stack += [(node, True), *((each, False) for each in inputs if each not in below)]
        elif inputs_done:
            own = owners.get(id(variable(node)))
            below[node] = set[int]().union(*(below[each] for each in inputs if each in below))
            below[node] |= {own} if own is not None else set()
            if node.name() in PRODUCTS:
                weights = {owners[id(w)] for each in inputs if id(w := weight_of(each)) in owners}
                if (frozen := frozen_weight(node)) in places:
                    weights.add(places[frozen])
                found = {(v, u) for v in weights for u in below[node] if u != v} - pairs.keys()
                pairs |= dict.fromkeys(found, handed_site(node, inputs) if found else None)
    return {(v, u): site for (v, u), site in pairs.items() if (u, v) not in pairs}


def weight_of(node: Any) -> Any:
    """The parameter that a node is, or is a view of."""
    while node is not None and node.name() in VIEWS:
        node = node.next_functions[0][0]
    return None if node is None else variable(node)


def frozen_weight(node: Any) -> int:
    """The address of the weight of a product that is only kept for the gradient of its other operand; 0 of others."""
    if is_packed(node):
        return 0
    kept = next((getattr(node, name) for name in KEPT if hasattr(node, name)), None)
    return place(kept) if isinstance(kept, torch.Tensor) and not kept.requires_grad else 0


def place(tensor: torch.Tensor) -> int:
    """Address in memory; 0 where there is none, as of weights that are spread over ranks."""
    return tensor.data_ptr() if type(tensor) in (torch.Tensor, torch.nn.Parameter) and not tensor.is_meta else 0


def foreign_gradients(tracker: OptimizerTracker) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Before a backward pass: (parameter, copy of its gradient), if all of it is of losses that others stepped on."""
    held = tracker.accumulated
    foreign = held and all(b.used_by and tracker.index not in b.used_by for b in held)
    if not foreign or tracker.sharded or tracker.writes.since_step or tracker.others.num_compared == MEASURED:
        return []
    tracker.others.num_compared += 1
    sample = {id(p): p for p in tracker.sample}.values()
    return [(p, p.grad.detach().clone()) for p in sample if p.grad is not None and not p.grad.is_sparse]


def is_opposed(before: list[tuple[torch.Tensor, torch.Tensor]]) -> bool:
    """After it: does what was added point away from what was there?"""
    added = [(old.double(), p.grad.double() - old) for p, old in before if p.grad is not None]
    dot, one, two = (
        sum((x * y).sum() for x, y in pairs)
        for pairs in (added, [(o, o) for o, _ in added], [(a, a) for _, a in added])
    )
    return bool(dot < OPPOSITE * (one * two) ** 0.5)
