"""Layers that are given one and the same target by all of their losses: their bias alone is the answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gradlab.watch.call_site import CallPath, CallSite, call_path
from gradlab.watch.events import Violation
from gradlab.watch.followed_update import FOLLOWED, NETWORKS, Reader, tensors_in
from gradlab.watch.graphs.loss_graph import PRODUCTS
from gradlab.watch.graphs.networks_between import weight_of
from gradlab.watch.readers.output_ranges import terms_below
from gradlab.watch.readers.similarities import VIEWS
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

LOSSES = {"binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "mse_loss"}
PASSED = tuple(f"{name}Backward" for name in (*VIEWS, "Sigmoid"))
CONSTANTS = {f"{before}{name}" for name in ("ones", "zeros", "full") for before in ("", "new_")} | {
    "ones_like",
    "zeros_like",
    "full_like",
}
JOINS = {"cat", "concat", "concatenate", "stack", "hstack", "vstack"}
SCORES = {"softplus": 0.0, "logsigmoid": 1.0, "log_sigmoid": 1.0}
"""Losses of scores by the side that they are to be on, 1 above zero; what it is turns with their sign."""
DIFFERENCES = {"sub", "__sub__", "rsub", "__rsub__"}
FEW = 4
"""Targets from which nothing is concluded."""


class ConstantTargets(Reader):
    """Compares the targets of several losses of one last layer, as of a discriminator's, in two updates in a row.

    Nothing is said of a layer whose output is used in any other way. A batch of data may be all of one class: the
    targets must be several that are made of one number, or are one, or tensors that both updates share.
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
        self.losses: dict[int, dict[CallPath, tuple[float | None, Tensor | None]]] = {}
        """id of a weight -> calls of its losses, and the number in the targets of each (None of different ones), and
        these, if they are tensors."""
        self.joined: Any = WeakTensorKeyDictionary()
        """Tensor that several such targets were joined to."""
        self.scores: list[tuple[Any, int, CallPath, float]] = []
        """Node of a function of scores, id of the weight, call and side."""
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
        if isinstance(result, Tensor) and not result.requires_grad and not result.is_inference():
            if name in CONSTANTS or is_one_number(result):
                self.fixed[result] = (result._version, False)
            elif name in JOINS and all(each in self.fixed for each in tensors_in(args)):
                self.fixed[result], self.joined[result] = (result._version, False), True
        if not isinstance(result, Tensor) or not result.requires_grad:
            return
        if name in NETWORKS:
            for key in {id(each) for each in args if isinstance(each, Tensor)} & self.owners.keys():
                self.uses[key] = self.uses.get(key, 0) + 1
        elif name in LOSSES and len(args) > 1 and isinstance(args[1], Tensor) and args[1].numel() >= FEW:
            if not args[1].is_inference():
                target = args[1].detach().flatten()
                same = bool((target == target[0]).all())
                self.note(last_weight(args[0].grad_fn), call_path(), target[0].item() if same else None, args[1])
        elif name in DIFFERENCES and isinstance(args[0], Tensor) and isinstance(args[1], (int, float)):
            if result.numel() >= FEW:
                self.note(last_weight(args[0].grad_fn), call_path(), float(args[1]))
        elif name in SCORES and result.numel() >= FEW:
            node: Any = args[0].grad_fn
            turned = node is not None and node.name() == "NegBackward0"
            weight = last_weight(node.next_functions[0][0] if turned else node)
            self.scores.append((result.grad_fn, weight, call_path(), abs(SCORES[name] - turned)))

    def note(self, weight: int, path: CallPath, value: float | None, target: Tensor | None = None) -> None:
        """Of a loss. target: None of a number."""
        if weight in self.owners:
            if not self.has_stepped(self.owners[weight]):
                self.latest[weight] = path
            self.losses.setdefault(weight, {})[path] = (value, target)

    def at_backward(self, roots: list[Tensor]) -> None:
        scores, self.scores = self.scores, []  # a node keeps its graph
        terms = {node for root in roots if scores and root.grad_fn is not None for node in terms_below(root.grad_fn)}
        for node, weight, path, side in scores:
            if node in terms:
                self.note(weight, path, side)

    def end(self) -> Iterator[Violation]:
        now: dict[int, float] = {}
        for weight, losses in self.losses.items():
            owner = self.owners[weight]
            if owner is not self.tracker and not self.has_stepped(owner):
                continue  # its own loss may be in other updates
            value, *others = [number for number, _ in losses.values()]
            several = bool(others) or any(t in self.joined for _, t in losses.values() if t is not None)
            if several and value is not None and {value} == set(others) and self.uses.get(weight) == len(losses):
                now[weight] = value
                if self.earlier.get(weight) == value and self.are_fixed([target for _, target in losses.values()]):
                    names = dict(zip(map(id, owner.params), owner.names, strict=True))
                    detail = f"{value:.3g} in {len(losses)} losses of {names[weight]}"
                    yield "one-target", own_line(self.latest.get(weight, ()), losses), detail
        for target in [each for losses in self.losses.values() for _, each in losses.values()]:
            if target is not None:
                self.fixed[target] = (target._version, True)
        self.earlier = {} if self.earlier else now
        self.forget()

    def has_stepped(self, owner: OptimizerTracker) -> bool:
        return owner.attempts > self.before[owner.index]

    def are_fixed(self, given: list[Tensor | None]) -> bool:
        targets = [each for each in given if each is not None]
        known = [self.fixed.get(each, (None, False)) for each in targets]
        several = len(set(map(id, given))) > 1 or len(targets) < len(given) or any(t in self.joined for t in targets)
        return all(v == t._version and (several or shared) for (v, shared), t in zip(known, targets, strict=True))


def is_one_number(tensor: Tensor) -> bool:
    """Whether all of its elements are the same place in memory."""
    if tensor.layout is not torch.strided:
        return False
    expanded = [step == 0 for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]
    return bool(expanded) and all(expanded)


def own_line(path: CallPath, others: Iterable[CallPath]) -> CallSite | None:
    """The innermost line of a call's that the others do not run through."""
    apart = [call for i, call in enumerate(path) if all(call not in each[i : i + 1] or each == path for each in others)]
    return next((call[:2] for call in apart or path), None)


def last_weight(node: Any) -> int:
    """id of the weight of the layer that a prediction comes from; 0 if there is none."""
    while node is not None and node.name().startswith(PASSED):
        node = node.next_functions[0][0]
    if node is None or node.name() not in PRODUCTS:
        return 0
    weights = [weight_of(each) for each, _ in node.next_functions if each is not None]
    return next((id(each) for each in reversed(weights) if each is not None and each.dim() > 1), 0)
