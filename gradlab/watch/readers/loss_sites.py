"""The line that computes a loss, which a verdict about the loss names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from gradlab.watch.call_site import CallSite, call_site
from gradlab.watch.events import Violation
from gradlab.watch.graphs.loss_graph import IDENTITIES
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

OUTER = IDENTITIES | {"DivBackward0", "MulBackward0"}
"""Nodes of factors that a loop or a trainer has applied."""


class LossSites:
    """Reads the lines of single numbers in one update; the tracker is given that of its loss."""

    def __init__(self) -> None:
        self.tracker: OptimizerTracker | None = None
        self.sites: dict[Any, CallSite | None] = {}
        """Node of a single number -> line of the call that has made it."""

    def begin(self, tracker: OptimizerTracker, without: list[Tensor], flat: list[Tensor]) -> bool:
        self.tracker = tracker
        return tracker.loss_site is None

    def follow(self, name: str, func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        if isinstance(result, Tensor) and result.dim() == 0 and result.grad_fn not in self.sites:
            self.sites[result.grad_fn] = call_site()

    def at_backward(self, roots: list[Tensor]) -> None:
        node: Any = roots[0].grad_fn if len(roots) == 1 else None
        while node is not None and self.tracker is not None:
            self.tracker.loss_site = self.sites.get(node, self.tracker.loss_site)
            inputs = [each for each, _ in node.next_functions if each is not None]
            node = inputs[0] if node.name() in OUTER and len(inputs) == 1 else None
        self.sites = {}  # a node keeps its graph

    def end(self) -> Iterator[Violation]:
        self.tracker, self.sites = None, {}
        yield from ()
