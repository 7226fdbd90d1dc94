"""Layers that are given one and the same target by all of their losses: their bias alone is the answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from gradlab.watch.call_site import CallSite, call_stack
from gradlab.watch.events import Violation
from gradlab.watch.followed_update import FOLLOWED, NETWORKS
from gradlab.watch.loss_arguments import VIEWS
from gradlab.watch.loss_graph import PRODUCTS
from gradlab.watch.networks_between import weight_of
from gradlab.watch.optimizer_tracker import OptimizerTracker

LOSSES = {"binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "mse_loss"}
PASSED = tuple(f"{name}Backward" for name in (*VIEWS, "Sigmoid"))
FEW = 4
"""Targets from which nothing is concluded."""


class ConstantTargets:
    """Compares the targets of several losses of one last layer, as of a discriminator's, in two updates.

    Nothing is said of a layer whose output is used in any other way.
    """

    def __init__(self) -> None:
        self.earlier: dict[int, float] = {}
        """id of the weight of such a layer -> its target in the first of them."""
        self.forget()

    def forget(self) -> None:
        self.uses: dict[int, int] = {}
        """id of a weight -> calls with it."""
        self.losses: dict[int, dict[tuple[CallSite, ...], float | None]] = {}
        """id of a weight -> lines of its losses, and the target of each; None of different ones."""

    def begin(self, tracker: OptimizerTracker, without: list[Tensor], flat: list[Tensor]) -> bool:
        self.forget()
        self.tracker = tracker
        return tracker.attempts in FOLLOWED

    def follow(self, name: str, func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        if not isinstance(result, Tensor) or not result.requires_grad:
            return
        if name in NETWORKS:
            for key in {id(each) for each in args if isinstance(each, Tensor)} & self.tracker.ids:
                self.uses[key] = self.uses.get(key, 0) + 1
        elif name in LOSSES and len(args) > 1 and isinstance(args[1], Tensor) and args[1].numel() >= FEW:
            weight, target = last_weight(args[0]), args[1].detach().flatten()
            if weight in self.tracker.ids:
                same = bool((target == target[0]).all())
                self.losses.setdefault(weight, {})[call_stack()] = target[0].item() if same else None

    def at_backward(self, roots: list[Tensor]) -> None:
        """The calls are read."""

    def end(self) -> Iterator[Violation]:
        now: dict[int, float] = {}
        for weight, losses in self.losses.items():
            value, *others = losses.values()
            if others and value is not None and {value} == set(others) and self.uses.get(weight) == len(losses):
                now[weight] = value
                if self.earlier.get(weight) == value:
                    names = dict(zip(map(id, self.tracker.params), self.tracker.names, strict=True))
                    detail = f"{value:.3g} in {len(losses)} losses of {names[weight]}"
                    yield "one-target", list(losses)[-1][0], detail
        self.earlier = now
        self.forget()


def last_weight(given: Tensor) -> int:
    """id of the weight of the layer that a prediction comes from; 0 if there is none."""
    node: Any = given.grad_fn
    while node is not None and node.name().startswith(PASSED):
        node = node.next_functions[0][0]
    if node is None or node.name() not in PRODUCTS:
        return 0
    weights = [weight_of(each) for each, _ in node.next_functions if each is not None]
    return next((id(each) for each in reversed(weights) if each is not None and each.dim() > 1), 0)
