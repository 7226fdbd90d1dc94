"""Targets that a copy of the network makes, which is meant to follow it and stays at its initial weights."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradlab.watch.call_site import USER, CallSite, origin
from gradlab.watch.events import Violation
from gradlab.watch.followed_update import FOLLOWED, NETWORKS, Reader, tensors_in
from gradlab.watch.graphs.loss_graph import nodes_below
from gradlab.watch.readers.broadcasts import LOSSES
from gradlab.watch.readers.own_targets import address
from gradlab.watch.tracking.followers import alike
from gradlab.watch.tracking.initial_weights import InitialWeights, is_uniform
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker
from gradlab.watch.uses_in_text import may_be_moved, rebinding_line

LONG = 100
"""Updates after which a copy that follows was moved."""
COMPARED = LOSSES | {"cross_entropy", "cosine_similarity", "sub", "__sub__", "__rsub__", "mul", "__mul__", "__rmul__"}
"""Functions of an output and of its target, besides products of two activations."""

Called = tuple[Tensor, "CallSite | None"]
"""A weight, and where its network was called."""


class StillTargets(Reader):
    """Follows what networks without gradients put out, to the losses of one update.

    Their weights are those that the trained ones had at the beginning, as PyTorch has drawn them, so that nothing that
    was learnt before is kept in them. A network that is shown the same inputs is one that the trained one is to stay
    close to: that of a preference, or of a penalty of a divergence.
    Where the text does anything else with the copy, as to move it every thousand updates, nothing is said.
    """

    def __init__(self, initial: InitialWeights) -> None:
        self.initial = initial
        self.found: dict[int, dict[int, Called]] = {}
        """Optimizer index -> ids of the weights of networks whose outputs are targets of its losses."""

    def begin(self, tracker: OptimizerTracker, without: list[Tensor], flat: list[Tensor]) -> bool:
        self.tracker, self.kept = tracker, list[Tensor]()
        self.makers: dict[int, dict[int, Called]] = {}
        """Address of a tensor -> the weights that it was computed of without gradients."""
        self.targets: list[dict[int, Called]] = []
        """The weights of each target that a loss was given."""
        self.inputs: dict[torch.Size, list[tuple[Tensor, Any]]] = {}
        """Shape of trained weights -> what they were given, and the node of what they have made of it."""
        self.in_losses: set[Any] = set()
        """Those of these nodes that a loss is computed of: another pass may only choose an action."""
        self.given: dict[int, list[Tensor]] = {}
        """The same of weights without gradients, by id."""
        return tracker.attempts in FOLLOWED[1:]

    def follow(self, name: str, func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        given = tensors_in([*args, *kwargs.values()])
        weights = [p for p in given if isinstance(p, nn.Parameter) and p.dim() > 1]
        made: dict[int, Called] = {}
        for each in given if self.makers or weights else ():
            made |= self.makers.get(address(each), {})
        live = any(each.requires_grad for each in tensors_in([result]))
        if name in NETWORKS and weights:
            made |= self.note_weights(weights, given[0], tensors_in([result]) if live else [])
        elif live and made and (name in COMPARED or name in NETWORKS):
            self.targets.append(made)
        if made and not live:
            outputs = [each for each in tensors_in([result]) if each.is_floating_point()]
            self.kept += outputs  # so that no other tensor gets their memory
            self.makers |= {address(each): made for each in outputs if address(each)}

    def at_backward(self, roots: list[Tensor]) -> None:
        made = {node for each in self.inputs.values() for _, node in each}
        self.in_losses |= made & set(nodes_below(root.grad_fn for root in roots)) if made else set()

    def note_weights(self, weights: Sequence[Tensor], shown: Tensor, live: list[Tensor]) -> dict[int, Called]:
        """A network is called: its weights, if it has no gradient and they are copies. live: what it has made of it,
        if that has a gradient."""
        if live:
            for p in weights:
                self.inputs.setdefault(p.shape, []).extend((shown.detach(), made.grad_fn) for made in live)
            return {}
        copies = [p for p in weights if id(p) not in self.tracker.ids and self.initial.has_values_of(self.tracker, p)]
        site = line_of_call(self.tracker.ids) if copies else None
        for p in copies:
            self.given.setdefault(id(p), []).append(shown.detach())
        return {id(p): (p, site) for p in copies}

    def is_shown_alike(self, p: Tensor) -> bool:
        trained = [b for b, node in self.inputs.get(p.shape, ()) if not self.in_losses or node in self.in_losses]
        pairs = [(a, b) for a in self.given.get(id(p), ()) for b in trained]
        return any(alike(a, b) and torch.equal(a, b) for a, b in pairs)

    def end(self) -> Iterator[Violation]:
        for made in self.targets:
            if not any(self.is_shown_alike(p) for p, _ in made.values()):
                self.found.setdefault(self.tracker.index, {}).update(made)
        self.targets, self.makers, self.inputs, self.given, self.kept = [], {}, {}, {}, []
        self.in_losses = set()
        yield from ()

    def at_end(self, tracker: OptimizerTracker, held: set[int]) -> Iterator[Violation]:
        """The loop is over. held: ids of the weights that optimizers hold."""
        found = self.found.get(tracker.index, {})
        if tracker.attempts < LONG or not found or found.keys() & held:
            return
        called = list(found.values())
        if any(may_be_moved(site) for _, site in called):
            return
        still = all(self.initial.has_values_of(tracker, p) for p, _ in called)
        if still and any(is_uniform(p) for p, _ in called):
            site = called[0][1]
            detail = f"after {tracker.attempts} updates"
            yield "target-never-updated", rebinding_line(site) or site or tracker.step_site, detail


def line_of_call(trained: set[int]) -> CallSite | None:
    """The innermost line of the user's that is in no `forward` of a network without trained weights.

    trained: their ids.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        code, owner = frame.f_code, frame.f_locals.get("self")
        own = isinstance(owner, nn.Module) and trained.isdisjoint(id(p) for p in owner.parameters())
        if origin(code.co_filename) == USER and not own:
            return code, frame.f_lineno
        frame = frame.f_back
    return None
