"""Regressions whose prediction ends in an activation that cannot reach nearly any of the targets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gradlab.watch.call_site import call_site
from gradlab.watch.events import Violation
from gradlab.watch.followed_update import FOLLOWED, LATE
from gradlab.watch.graphs.advantages import inputs_of
from gradlab.watch.graphs.loss_graph import FACTORS, IDENTITIES, MAX_TERMS, split
from gradlab.watch.readers.class_losses import down
from gradlab.watch.readers.drawn_values import DISTANCES
from gradlab.watch.readers.similarities import VIEWS
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

Range = tuple[str, float, float]
Judge = Callable[[Tensor, Tensor, Range, float, int], str]
"""Of predictions and targets by sample, a range, a bound and its side, -1 below: what is wrong."""
RANGES = {
    "Relu": ("a ReLU", 0.0, math.inf),
    "Softplus": ("a softplus", 0.0, math.inf),
    "Exp": ("an exponential", 0.0, math.inf),
    "Sigmoid": ("a sigmoid", 0.0, 1.0),
    "Softmax": ("a softmax", 0.0, 1.0),
    "Tanh": ("a tanh", -1.0, 1.0),
    "LogSoftmax": ("a log_softmax", -math.inf, 0.0),
}
"""Beginning of the name of a node -> what it is, and the range of its results."""
REGRESSIONS = {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"}
DIFFERENCES = {"sub", "__sub__", "__rsub__", "rsub"}
PASSED = IDENTITIES | {f"{name}Backward{i}" for i in (0, 1) for name in ("Mean", "Sum", "Mul", "Div", "Neg")}
SUMS = {"AddBackward0", "SubBackward0"}
MIN_SAMPLES = 16
"""Fewer of them may lie outside by chance."""
SHARE = 0.95
"""Of the samples whose mean lies outside: noise on targets within the range has it there about as often as not."""
MARGIN = 0.1
"""Standard deviations of the targets by which they must."""
STUCK = 0.2
"""Share of the predictions that lie at a bound once the loop has warmed up."""
NEAR = 0.01
"""Standard deviations of the targets between these and the bound, at most."""
FAR = 0.25
"""The same, of the targets of most of them, at least."""
MOST = 0.9
"""Share of their targets that lie outside."""
LOST = 0.4
"""Share of the targets' variance that is outside of the range, at least, if such predictions are of interest."""
VALUES = 3
"""Different ones among them at least: a single one may stand for what is missing."""


class OutputRanges:
    """Compares predictions and targets of the second update, and of the 41st."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.errors: Any = WeakTensorKeyDictionary()
        """Difference of a prediction and a target -> what is wrong with it."""
        self.found: list[tuple[Any, Violation]] = []
        """With the nodes of the losses."""
        self.used: list[Violation] = []
        """Of those that went backward."""

    def begin(self, tracker: OptimizerTracker, without: list[Tensor], flat: list[Tensor]) -> bool:
        self.forget()
        self.judge = are_stuck if tracker.attempts == LATE else lie_outside
        return tracker.attempts in (FOLLOWED[0], LATE)

    def follow(self, name: str, func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        if not isinstance(result, Tensor) or not result.requires_grad or not args or not isinstance(args[0], Tensor):
            return
        why = ""
        if name in REGRESSIONS | DIFFERENCES:
            target = args[1] if len(args) > 1 else kwargs.get("target")
            why = out_of_reach(args[0], target, self.judge) if isinstance(target, Tensor) else ""
            if name in DIFFERENCES:
                self.errors[result], why = why, ""
        elif name in DISTANCES:
            why = self.errors.get(args[0], "")
        if why:
            self.found.append((result.grad_fn, ("loss-input", call_site(), why)))

    def at_backward(self, roots: list[Tensor]) -> None:
        plain = [root.grad_fn for root in roots if root.numel() == 1] if self.found else []
        nodes = {node for root in plain for node in terms_below(root)}
        self.used += [found for node, found in self.found if node in nodes]
        self.found = []  # a node keeps its graph

    def end(self) -> Iterator[Violation]:
        yield from self.used[:1]
        self.forget()


def out_of_reach(one: Tensor, two: Tensor, judge: Judge) -> str:
    """Of a prediction and a target, in whichever order: what of the one the other cannot be."""
    live, target = (one, two) if one.requires_grad else (two, one)
    if not are_beside(one, two) or not target.dim() or len(target) < MIN_SAMPLES or (known := range_of(live)) is None:
        return ""
    given, wanted = (each.detach().float().reshape(len(target), -1) for each in (live, target))
    if len(wanted.mean(1).unique()) < VALUES:
        return ""
    what, low, high = known
    for side, bound, sign in (("below", low, -1), ("above", high, 1)):
        if math.isfinite(bound) and (found := judge(given, wanted, known, bound, sign)):
            return f"the prediction comes from {what}, and {found} {side} {bound:g}"
    return ""


def lie_outside(given: Tensor, wanted: Tensor, known: Range, bound: float, sign: int) -> str:
    """Whether nearly all targets lie outside of one side of a range."""
    values = wanted.mean(1)
    away = sign * (values - bound)
    share = (away > MARGIN * values.std()).float().mean().item()
    return f"{share:.0%} of the samples' targets are" if share >= SHARE and away.mean() > 0 else ""


def are_stuck(given: Tensor, wanted: Tensor, known: Range, bound: float, sign: int) -> str:
    """Whether predictions have come to a bound, and nearly all of their targets lie outside: they would be as often
    within if it was for noise."""
    spread = wanted.std()
    at = (given - bound).abs() <= NEAR * spread
    outside = (wanted - wanted.clamp(known[1], known[2])).square().sum() / (wanted - wanted.mean()).square().sum()
    if int(at.any(1).sum()) < MIN_SAMPLES or at.float().mean() < STUCK or outside < LOST:
        return ""
    away = sign * (wanted[at] - bound)
    share = (away > NEAR * spread).float().mean().item()
    certain = share >= MOST and away.median() >= FAR * spread
    return f"{share:.0%} of the targets of predictions that have come to the bound are" if certain else ""


def are_beside(one: Tensor, two: Tensor) -> bool:
    """Whether they are a prediction and a target, in whichever order."""
    live, target = (one, two) if one.requires_grad else (two, one)
    plain = target.layout is torch.strided and target.is_floating_point()
    return plain and not target.requires_grad and live.requires_grad and live.shape == target.shape


def range_of(live: Tensor) -> Range | None:
    """What the last activation before a prediction is, and the range of its results."""
    node = down(live.grad_fn, (*VIEWS, "Index"))
    if node is None:
        return None
    if node.name().startswith(("ClampBackward1", "HardtanhBackward")):
        low, high = (getattr(node, f"_saved_{name}", None) for name in ("min", "max"))
        if node.name().startswith("Hardtanh"):
            low, high = node._saved_min_val, node._saved_max_val
        bounds = [side if isinstance(side, (int, float)) else None for side in (low, high)]
        return "a clamp", -math.inf if bounds[0] is None else bounds[0], math.inf if bounds[1] is None else bounds[1]
    return next((known for name, known in RANGES.items() if node.name().startswith(f"{name}Backward")), None)


def terms_below(node: Any) -> set[Any]:
    """What a loss is a mean or sum of, maybe with factors, one for all elements."""
    queue, seen = [node], {node}
    while queue and len(seen) < MAX_TERMS:
        node = queue.pop()
        inputs = inputs_of(node)
        if node.name() in FACTORS and not is_weighed(node):
            continue
        if (node.name() in PASSED and len(inputs) == 1) or node.name() in SUMS:
            queue += [each for each in inputs if each not in seen]
            seen |= set(inputs)
    return seen


def is_weighed(node: Any) -> bool:
    """Whether a node multiplies by one constant above 0."""
    constant = split(node, node.name(), node.next_functions)[0] if node.name() != "NegBackward0" else None
    return constant is not None and constant.device.type == "cpu" and bool(constant > 0)
