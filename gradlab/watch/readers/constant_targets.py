"""Layers that are given one and the same target by all of their losses: their bias alone is the answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gradlab.watch.call_site import CallPath, CallSite, call_path
from gradlab.watch.events import Violation
from gradlab.watch.followed_update import FOLLOWED, NETWORKS, Reader
from gradlab.watch.graphs.loss_graph import PRODUCTS
from gradlab.watch.graphs.networks_between import weight_of
from gradlab.watch.readers.similarities import VIEWS
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

LOSSES = {"binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "mse_loss"}
PASSED = tuple(f"{name}Backward" for name in (*VIEWS, "Sigmoid"))
CONSTANTS = {f"{before}{name}" for name in ("ones", "zeros", "full") for before in ("", "new_")} | {
    "ones_like",
    "zeros_like",
    "full_like",
}
FEW = 4
"""Targets from which nothing is concluded."""


class ConstantTargets(Reader):
    """Compares the targets of several losses of one last layer, as of a discriminator's, in two updates in a row.

    Nothing is said of a layer whose output is used in any other way. A batch of data may be all of one class: the
    targets must be several that are made of one number, or tensors that both updates share.
    """

    def __init__(self, trackers: list[OptimizerTracker]) -> None:
        self.trackers = trackers
        self.earlier: dict[int, float] = {}
        """id of the weight of such a layer -> its target in the first of them."""
        self.fixed: Any = WeakTensorKeyDictionary()
        """Tensor made of one number, or the target of the update before -> its version, and whether it is the latter.
        """
        self.forget()

    def forget(self) -> None:
        self.uses: dict[int, int] = {}
        """id of a weight -> calls with it."""
        self.losses: dict[int, dict[CallPath, tuple[float | None, Tensor]]] = {}
        """id of a weight -> calls of its losses, and the number in the targets of each (None of different ones)."""
        self.latest: dict[int, CallPath] = {}
        """id of a weight -> calls of the latest of them before its own step."""

    def begin(self, tracker: OptimizerTracker, without: list[Tensor], flat: list[Tensor]) -> bool:
        self.forget()
        self.tracker, self.before = tracker, [each.attempts for each in self.trackers]
        self.owners = {key: each for each in self.trackers for key in each.ids}
        if tracker.attempts != FOLLOWED[1] + 1:
            self.earlier = {}
        return tracker.attempts == FOLLOWED[1] or self.is_pending

    @property
    def is_pending(self) -> bool:
        return bool(self.earlier)

    def follow(self, name: str, func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        if name in CONSTANTS and not result.is_inference():
            self.fixed[result] = (result._version, False)
        if not isinstance(result, Tensor) or not result.requires_grad:
            return
        if name in NETWORKS:
            for key in {id(each) for each in args if isinstance(each, Tensor)} & self.owners.keys():
                self.uses[key] = self.uses.get(key, 0) + 1
        elif name in LOSSES and len(args) > 1 and isinstance(args[1], Tensor) and args[1].numel() >= FEW:
            if args[1].is_inference():
                return
            weight, target = last_weight(args[0]), args[1].detach().flatten()
            if weight in self.owners:
                same = bool((target == target[0]).all())
                path = call_path()
                if not self.has_stepped(self.owners[weight]):
                    self.latest[weight] = path
                self.losses.setdefault(weight, {})[path] = (target[0].item() if same else None, args[1])

    def end(self) -> Iterator[Violation]:
        now: dict[int, float] = {}
        for weight, losses in self.losses.items():
            owner = self.owners[weight]
            if owner is not self.tracker and not self.has_stepped(owner):
                continue  # its own loss may be in other updates
            value, *others = [number for number, _ in losses.values()]
            if others and value is not None and {value} == set(others) and self.uses.get(weight) == len(losses):
                now[weight] = value
                if self.earlier.get(weight) == value and self.are_fixed([target for _, target in losses.values()]):
                    names = dict(zip(map(id, owner.params), owner.names, strict=True))
                    detail = f"{value:.3g} in {len(losses)} losses of {names[weight]}"
                    yield "one-target", own_line(self.latest.get(weight, ()), losses), detail
        for _, target in [each for losses in self.losses.values() for each in losses.values()]:
            self.fixed[target] = (target._version, True)
        self.earlier = {} if self.earlier else now
        self.forget()

    def has_stepped(self, owner: OptimizerTracker) -> bool:
        return owner.attempts > self.before[owner.index]

    def are_fixed(self, targets: list[Tensor]) -> bool:
        known = [self.fixed.get(each, (None, False)) for each in targets]
        several = len(set(map(id, targets))) > 1
        return all(v == t._version and (several or shared) for (v, shared), t in zip(known, targets, strict=True))


def own_line(path: CallPath, others: Iterable[CallPath]) -> CallSite | None:
    """The innermost line of a call's that the others do not run through."""
    apart = [call for i, call in enumerate(path) if all(call not in each[i : i + 1] or each == path for each in others)]
    return next((call[:2] for call in apart or path), None)


def last_weight(given: Tensor) -> int:
    """id of the weight of the layer that a prediction comes from; 0 if there is none."""
    node: Any = given.grad_fn
    while node is not None and node.name().startswith(PASSED):
        node = node.next_functions[0][0]
    if node is None or node.name() not in PRODUCTS:
        return 0
    weights = [weight_of(each) for each, _ in node.next_functions if each is not None]
    return next((id(each) for each in reversed(weights) if each is not None and each.dim() > 1), 0)
