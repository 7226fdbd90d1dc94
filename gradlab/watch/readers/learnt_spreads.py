"""Outputs that weigh the errors of other outputs, as a variance for each sample, and that nothing else keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gradlab.watch.call_site import CallSite
from gradlab.watch.events import Violation
from gradlab.watch.followed_update import FOLLOWED, LATE, Reader
from gradlab.watch.graphs.advantages import inputs_of
from gradlab.watch.graphs.loss_graph import IDENTITIES, MAX_NODES, PRODUCTS, is_packed, split
from gradlab.watch.graphs.networks_between import weight_of
from gradlab.watch.graphs.node_lines import site_of
from gradlab.watch.readers.learnt_weights import PASSED, leaves
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker, listed

KEPT = {"Split": "", "SplitWithSizes": "", "Unbind": "", "Select": "_saved_index", "Slice": "_saved_start"}
"""Nodes of a part of an output, and what they say of which one; the others return several."""
FALLEN = 0.99
"""Of the mean weight of the first of both updates, what is left of it at most."""
Edge = tuple[Any, int]
"""A node, and which of its results."""
Part = tuple[Any, str, int]
"""The product that an output comes from, the kind of node that takes a part of it, and which part."""


@dataclass
class Spread:
    """A factor that falls to 0 with an output."""

    level: float
    site: CallSite | None
    weights: frozenset[int]
    """ids of those of its last layer."""


class LearntSpreads(Reader):
    """Reads the graphs of the losses of two updates, of which one is late: the factors must have become smaller."""

    def __init__(self) -> None:
        self.earlier: dict[int, Spread] = {}
        """Index of an optimizer -> what was found in the first of them."""
        self.latest: Spread | None = None

    def begin(self, tracker: OptimizerTracker, without: list[Tensor], flat: list[Tensor]) -> bool:
        self.tracker, self.latest, self.passes = tracker, None, 0
        return tracker.attempts == FOLLOWED[0] or (tracker.attempts == LATE and tracker.index in self.earlier)

    def at_backward(self, roots: list[Tensor]) -> None:
        self.passes += len(roots)
        for root in roots if self.tracker.descends else ():
            if root.grad_fn is not None and (found := spread_of(root.grad_fn, self.tracker.ids)) is not None:
                self.latest = found

    def end(self) -> Iterator[Violation]:
        earlier, latest, self.latest = self.earlier.get(self.tracker.index), self.latest, None
        if self.passes != 1:  # another loss may keep it
            self.earlier.pop(self.tracker.index, None)
            return
        if self.tracker.attempts == FOLLOWED[0]:
            self.earlier |= {self.tracker.index: latest} if latest is not None else {}
        elif earlier is not None and latest is not None and latest.level < FALLEN * earlier.level:
            if earlier.weights != latest.weights:
                return
            named = zip(self.tracker.params, self.tracker.names, strict=True)
            names = [n for p, n in named if id(p) in latest.weights]
            yield "learnt-weight-unbounded", earlier.site, f"an output of {listed(names)} for each sample"


def spread_of(root: Any, trained: set[int]) -> Spread | None:
    """The first such factor among the terms of a loss."""
    stack, seen = [(root, False)], {root}
    while stack and len(seen) < MAX_NODES:
        node, squared = stack.pop()
        name, inputs = node.name(), inputs_of(node)
        if name in ("MulBackward0", "DivBackward0") and len(inputs) == 2:
            if (found := of_product(root, node, squared, trained)) is not None:
                return found
            continue
        even = name == "PowBackward0" and node._saved_exponent == 2
        constant = None
        if name in ("MulBackward0", "DivBackward0") and len(inputs) == 1:
            constant, _ = split(node, name, node.next_functions)
            if constant is None or constant.device.type != "cpu" or not constant.item() > 0:
                continue
        if even or constant is not None or name == "AddBackward0" or (name in PASSED and name != "NegBackward0"):
            stack += [(each, even) for each in inputs if each not in seen]
            seen |= set(inputs)
    return None


def of_product(root: Any, node: Any, squared: bool, trained: set[int]) -> Spread | None:
    """Whether one side is such a factor, and the other an error that the same optimizer trains."""
    if is_packed(node):
        return None
    divided = node.name() == "DivBackward0"
    sides = [each for each, _ in node.next_functions]
    values = [node._saved_self.detach(), node._saved_other.detach()]
    for i in (1,) if divided else (0, 1):
        other, active = leaves(sides[1 - i])
        way: list[Edge] = []
        part = free_part(sides[i], node.next_functions[i][1], divided, way)
        if part is None or not active or not other.keys() & trained:
            continue
        if not bool((values[i] > 0).all()) or not (squared or bool((values[1 - i] >= 0).all())):
            continue
        own = {id(w) for each in inputs_of(part[0]) if (w := weight_of(each)) is not None}
        if own & trained and is_used_once(root, part, way):
            level = (1 / values[i] if divided else values[i]).float().mean().item()
            return Spread(level, site_of(node), frozenset(own))
    return None


def free_part(node: Any, output: int, grows: bool, way: list[Edge]) -> Part | None:
    """The part of an output with which a value goes to 0 (grows: rises without bound), whatever else holds. way: takes
    what leads there."""
    way.append((node, output))
    kind, inputs = node.name().partition("Backward")[0], inputs_of(node)
    if kind in ("Exp", "Softplus") or (kind == "Sigmoid" and not grows):
        return part_of(node.next_functions[0][0], node.next_functions[0][1], way)
    if kind == "Reciprocal":
        return free_part(node.next_functions[0][0], node.next_functions[0][1], not grows, way)
    is_root = kind in ("Sqrt", "Pow") and (kind == "Sqrt" or node._saved_exponent > 0)
    adds = kind == "Add" and grows and len(inputs) == 1
    if node.name() in IDENTITIES or is_root or adds:
        edge = next(each for each in node.next_functions if each[0] is not None)
        return free_part(edge[0], edge[1], grows, way)
    return None


def part_of(node: Any, output: int, way: list[Edge]) -> Part | None:
    """Below factors, and what is added: the part of an output that moves a value to either side."""
    while node is not None:
        way.append((node, output))
        kind, inputs = node.name().partition("Backward")[0], inputs_of(node)
        if kind in KEPT:
            product = below_identities(inputs[0])
            which = int(getattr(node, KEPT[kind])) if KEPT[kind] else output
            return (product, kind, which) if product is not None else None
        if (product := below_identities(node)) is not None:
            return product, "", 0
        if kind not in ("Neg", "Mul", "Div", "Add", "Sub") and node.name() not in IDENTITIES:
            return None
        if len(inputs) != 1:
            return None
        node, output = next(each for each in node.next_functions if each[0] is not None)
    return None


def below_identities(node: Any) -> Any:
    """The product of a layer that a node is, or is a view of; None of others."""
    while node.name() in IDENTITIES and inputs_of(node):
        node = inputs_of(node)[0]
    return node if node.name() in PRODUCTS else None


def is_used_once(root: Any, part: Part, way: list[Edge]) -> bool:
    """Whether nothing else in a loss depends on a part, or on what leads to it, or may."""
    queue, seen = [root], {root}
    uses: dict[Edge, int] = {}
    others = 0
    while queue and len(seen) < MAX_NODES:
        node = queue.pop()
        for each, output in node.next_functions:
            if each is None:
                continue
            uses[each, output] = uses.get((each, output), 0) + 1
            kind = each.name().partition("Backward")[0]
            if kind in KEPT and below_identities(inputs_of(each)[0]) is part[0]:
                others += part_of(each, output, []) == part or kind != part[1]
            elif part[1] and below_identities(each) is part[0] and node.name() not in IDENTITIES:
                others += node.name().partition("Backward")[0] not in KEPT
            if each not in seen:
                seen.add(each)
                queue.append(each)
    return all(uses.get(edge) == 1 for edge in way) and others == bool(part[1])
