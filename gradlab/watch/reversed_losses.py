"""Losses that are an error with its sign reversed: it is made as large as can be, and there is no bound."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from gradlab.watch.advantages import inputs_of
from gradlab.watch.call_site import CallSite
from gradlab.watch.events import Violation
from gradlab.watch.followed_update import FOLLOWED
from gradlab.watch.graph_sites import site_of
from gradlab.watch.loss_graph import IDENTITIES, MAX_NODES, PRODUCTS, REGRESSIONS, split
from gradlab.watch.networks_between import weight_of
from gradlab.watch.optimizer_tracker import OptimizerTracker

ERRORS = {*REGRESSIONS, "L1LossBackward0", "NllLossBackward0", "NllLoss2DBackward0", "BinaryCrossEntropyBackward0"}
ERRORS |= {"BinaryCrossEntropyWithLogitsBackward0", "CtcLossBackward0"}
PASSED = IDENTITIES | {"MeanBackward0", "SumBackward0", "MeanBackward1", "SumBackward1", "GatherBackward0"}
PASSED |= {"IndexBackward0", "SelectBackward0", "SqueezeBackward1"}


class ReversedLosses:
    """Reads the graphs of all losses of two updates: each must be such an error alone, of a layer that is trained.

    As a term beside others, or of a network that is trained by another loss, an error may have to grow.
    """

    def __init__(self) -> None:
        self.site: CallSite | None = None
        """Line of the first of them; lines are known in the first update alone."""
        self.forget()

    def forget(self) -> None:
        self.losses: list[bool] = []
        """Whether each is one."""

    def begin(self, tracker: OptimizerTracker, without: list[Tensor], flat: list[Tensor]) -> bool:
        self.forget()
        self.tracker = tracker
        if any(group.get("maximize") for group in tracker.optimizer.param_groups):
            return False
        return tracker.attempts == FOLLOWED[0] or (tracker.attempts == FOLLOWED[1] and self.site is not None)

    def follow(self, name: str, func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        """The graph is read."""

    def at_backward(self, roots: list[Tensor]) -> None:
        for root in roots:
            error = error_of(root.grad_fn)
            reverse = error is not None and bool(last_weights(error) & self.tracker.ids)
            self.losses.append(reverse)
            if reverse and self.tracker.attempts == FOLLOWED[0]:
                self.site = site_of(root.grad_fn)

    def end(self) -> Iterator[Violation]:
        found = bool(self.losses) and all(self.losses)
        if found and self.tracker.attempts == FOLLOWED[1]:
            yield "loss-reversed", self.site, ""
        self.site = self.site if found else None
        self.forget()


def error_of(node: Any) -> Any:
    """The node of an error whose sign is reversed, or of logarithms that are made small; None of other losses.

    A number that multiplies it may be the return of an episode, or its cost, whose sign decides: nothing is said.
    """
    sign = 1
    for _ in range(MAX_NODES):
        if node is None:
            return None
        name, inputs = node.name(), inputs_of(node)
        if name in ERRORS:
            return node if sign < 0 else None
        if name == "LogSoftmaxBackward0" or [each.name() for each in inputs][1:] == ["LogsumexpBackward0"]:
            return node if sign > 0 else None
        if name == "NegBackward0":
            sign, node = -sign, inputs[0]
        elif name == "DivBackward0":
            constant, node = split(node, name, node.next_functions)
            if constant is None or constant.device.type != "cpu" or constant.item() < 0:
                return None
        elif name in PASSED and len(inputs) == 1:
            node = inputs[0]
        else:
            return None
    return None


def last_weights(node: Any) -> set[int]:
    """ids of the weights of the products nearest below."""
    queue, seen, found = [node], {node}, set[int]()
    while queue and len(seen) < MAX_NODES:
        node = queue.pop()
        inputs = inputs_of(node)
        if node.name() in PRODUCTS:
            found |= {id(w) for each in inputs if (w := weight_of(each)) is not None}
            continue
        queue += [each for each in inputs if each not in seen]
        seen |= set(inputs)
    return found
