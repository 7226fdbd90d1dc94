"""Weights that are made anew in every forward pass, and thrown away with it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from gradlab.watch.call_site import CallSite, call_site
from gradlab.watch.events import Violation
from gradlab.watch.followed_update import tensors_in
from gradlab.watch.graphs.loss_graph import nodes_below, variable
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

IN_A_ROW = 3
"""Updates in a row that have others at the same line."""


class FreshWeights:
    """Looks for weights of no model and no optimizer in the graphs of losses, in the second update and the next."""

    def __init__(self, models: Sequence[nn.Module], trackers: Sequence[OptimizerTracker]) -> None:
        self.models, self.trackers = models, trackers
        self.is_pending = False
        self.in_a_row = 0
        self.earlier: dict[CallSite | None, list[weakref.ref[Tensor]]] = {}
        """Line at which they are used -> those of the update before."""
        self.forget()

    def forget(self) -> None:
        self.known: set[int] = set()
        self.sites: dict[int, tuple[weakref.ref[Tensor], CallSite | None]] = {}
        """id of such a weight -> itself, and the line at which it is used."""
        self.used: set[int] = set()
        """Those that a loss of weights of the optimizer depends on."""

    def begin(self, tracker: OptimizerTracker, without: list[Tensor], flat: list[Tensor]) -> bool:
        self.forget()
        held = (p for t in self.trackers for group in t.optimizer.param_groups for p in group["params"])
        self.known = {id(p) for p in held} | {id(p) for model in self.models for p in model.parameters()}
        self.own = tracker.ids
        return tracker.attempts == 1 or self.is_pending

    def follow(self, name: str, func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        if isinstance(result, Tensor) and result.grad_fn is not None:
            for each in tensors_in([*args, *kwargs.values()]):
                if type(each) is nn.Parameter and id(each) not in self.known and each.requires_grad:
                    self.sites.setdefault(id(each), (weakref.ref(each), call_site()))

    def at_backward(self, roots: list[Tensor]) -> None:
        if not self.sites:
            return
        found = {id(variable(node)) for node in nodes_below(root.grad_fn for root in roots)}
        self.used |= found & self.sites.keys() if found & self.own else set()

    def end(self) -> Iterator[Violation]:
        earlier, self.earlier = self.earlier, {}
        for reference, site in (self.sites[key] for key in self.used):
            self.earlier.setdefault(site, []).append(reference)
        gone = {site for site, references in earlier.items() if all(each() is None for each in references)}
        again = gone & self.earlier.keys()
        self.in_a_row = self.in_a_row + 1 if again else int(bool(self.earlier))
        self.is_pending = 0 < self.in_a_row < IN_A_ROW and (bool(again) or not earlier)
        if self.in_a_row == IN_A_ROW and again:
            yield "weights-made-anew", next(site for site in self.earlier if site in again), ""
        self.forget()
