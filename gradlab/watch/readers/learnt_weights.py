"""Learnt weights that multiply losses, as by their uncertainty, and that nothing keeps from going to zero."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from gradlab.watch.call_site import CallSite
from gradlab.watch.events import Violation
from gradlab.watch.followed_update import FOLLOWED, Reader
from gradlab.watch.graphs.advantages import inputs_of
from gradlab.watch.graphs.loss_graph import (
    FACTORS,
    IDENTITIES,
    MAX_NODES,
    PRODUCTS,
    is_packed,
    nodes_below,
    split,
    variable,
)
from gradlab.watch.graphs.node_lines import site_of
from gradlab.watch.readers.gradient_reads import HOOKED
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker, listed

SMALL = 64
"""Elements of such a weight at most."""
DECAY = 1e-3
"""Weight decay from which on it may keep them up."""
DECOUPLED = 0.05
"""Where it is multiplied by the learning rate in place of being scaled as a gradient is."""
PICKED = {"Select", "Slice", "Index", "Unbind", "Expand", "Unsqueeze", "Squeeze", "View", "ReshapeAlias"}
PASSED = IDENTITIES | {f"{name}Backward{i}" for i in (0, 1) for name in ("Mean", "Sum", "Stack", "Cat", "Neg")}


@dataclass
class Weighting:
    """What a loss depends on in which way: ids of weights."""

    weighed: set[int] = field(default_factory=set)
    """Of factors of a term that is positive and made of activations, which are positive too."""
    ways: dict[int, int] = field(default_factory=dict)
    """Whether these factors become smaller with the weight, which is 1, or as it grows, which is -1."""
    otherwise: set[int] = field(default_factory=set)
    """Of other parts, and of factors that become smaller in both ways."""
    level: float = 0.0
    """Sum of the factors."""
    site: CallSite | None = None


class LearntWeights(Reader):
    """Reads the graphs of the losses of two updates: the weights are such, and have become smaller since."""

    def __init__(self) -> None:
        self.earlier: Weighting | None = None
        self.latest: Weighting | None = None

    def begin(self, tracker: OptimizerTracker, without: list[Tensor], flat: list[Tensor]) -> bool:
        self.tracker, self.latest = tracker, None
        if tracker.attempts == FOLLOWED[0]:
            self.earlier = None
        return tracker.attempts in FOLLOWED

    def at_backward(self, roots: list[Tensor]) -> None:
        found = self.latest = self.latest or Weighting()
        for root in roots:
            if root.grad_fn is not None:
                weighting(root.grad_fn, found)

    def end(self) -> Iterator[Violation]:
        earlier, latest, self.latest = self.earlier, self.latest, None
        if self.tracker.attempts == FOLLOWED[0]:
            self.earlier = latest
        elif earlier is not None and latest is not None:
            alone = [p for p in self.kept_up_by_nothing() if id(p) in latest.weighed - latest.otherwise]
            if alone and earlier.weighed == latest.weighed and latest.level < (1 - 1e-6) * earlier.level:
                yield "learnt-weight-unbounded", earlier.site, listed([self.tracker.name_of(p) for p in alone])

    def kept_up_by_nothing(self) -> list[Tensor]:
        if self.tracker.writes.ever:
            return []
        groups = [g for g in self.tracker.optimizer.param_groups if not g.get("maximize")]
        weights = [p for g in groups if float(g.get("weight_decay") or 0) < decay_of(g) for p in g["params"]]
        return [p for p in weights if not any(getattr(p, name, None) for name in HOOKED)]


def decay_of(group: dict[str, Any]) -> float:
    return DECOUPLED if group.get("decoupled_weight_decay") else DECAY


def weighting(root: Any, found: Weighting) -> None:
    """Down the sums of a loss to its terms."""
    stack, seen = [(root, 1)], {root}
    while stack and len(seen) < MAX_NODES:
        node, sign = stack.pop()
        name, inputs = node.name(), inputs_of(node)
        below: list[tuple[Any, int]] | None = None
        if name in PASSED or (name in ("AddBackward0", "SubBackward0") and inputs):
            minus = node.next_functions[1][0] if name == "SubBackward0" else None
            below = [(each, -sign if name == "NegBackward0" or each is minus else sign) for each in inputs]
        elif name in ("MulBackward0", "DivBackward0") and len(inputs) == 1:
            constant, each = split(node, name, node.next_functions)
            if constant is not None and constant.device.type == "cpu":
                below = [(each, sign if constant.item() > 0 else -sign)] if constant.item() else []
        elif name in ("MulBackward0", "DivBackward0") and note_product(node, sign, found):
            continue
        if below is None:
            found.otherwise |= leaves(node)[0].keys()
        else:
            stack += [each for each in below if each[0] not in seen]
            seen |= {each for each, _ in below}


def note_product(node: Any, sign: int, found: Weighting) -> bool:
    """Whether it is one of such a factor and a term; if so, it is noted."""
    if sign < 0 or is_packed(node):
        return False
    sides = [each for each, _ in node.next_functions]
    values = [node._saved_self.detach(), node._saved_other.detach()]
    if not all(bool((each > 0).all()) for each in values):
        return False
    divided = node.name() == "DivBackward0"
    for i in (1,) if divided else (0, 1):
        (own, active), (theirs, other_active) = leaves(sides[i]), leaves(sides[1 - i])
        ways = directions(sides[i], divided, -1 if divided else 1) if not active and other_active else {}
        if ways and max(sizes(own)) <= SMALL:
            found.otherwise |= {weight for weight, way in ways.items() if found.ways.setdefault(weight, way) != way}
            found.weighed |= own.keys()
            found.otherwise |= theirs.keys()
            found.level += float((1 / values[i] if divided else values[i]).sum())
            found.site = found.site or site_of(node)
            return True
    return False


def sizes(weights: dict[int, Tensor]) -> list[int]:
    return [p.numel() for p in weights.values()]


def directions(node: Any, grows: bool, sign: int = 1) -> dict[int, int]:
    """Weights that can take a value to zero (grows: without bound), and 1 if it is by becoming smaller (larger).

    Nothing if that is not certain: a constant is added, a clamp is in between, or two ways lead in two directions.
    """
    if (weight := variable(node)) is not None:
        return {id(weight): sign}
    name, inputs = node.name(), inputs_of(node)
    kind = name.partition("Backward")[0]
    if name in FACTORS and len(inputs) == 1:
        if name == "DivBackward0" and node.next_functions[0][0] is None:
            return directions(inputs[0], not grows, -sign)
        constant, below = split(node, name, node.next_functions) if name != "NegBackward0" else (None, inputs[0])
        if constant is None and name != "NegBackward0":
            return {}
        negative = constant is None or (constant.device.type == "cpu" and constant.item() < 0)
        return directions(below, grows, -sign if negative else sign)
    if kind == "Reciprocal":
        return directions(inputs[0], not grows, -sign)
    if kind in ("Exp", "Softplus") or (kind == "Sigmoid" and not grows):
        return directions(inputs[0], True, sign)
    if name in IDENTITIES or kind in PICKED or (name == "PowBackward0" and node._saved_exponent > 0):
        return directions(inputs[0], grows, sign)
    found: dict[int, int] = {}
    if kind in ("Stack", "Cat") or (kind == "Add" and grows):
        for each in (directions(below, grows, sign) for below in inputs):
            if not each or any(found.get(weight, way) != way for weight, way in each.items()):
                return {}
            found |= each
    return found


def leaves(node: Any) -> tuple[dict[int, Tensor], bool]:
    """The weights that a node depends on, by their ids, and whether it is made of activations."""
    nodes = list(nodes_below([node]))
    found = {id(weight): weight for each in nodes if (weight := variable(each)) is not None}
    return found, any(each.name() in PRODUCTS for each in nodes)
