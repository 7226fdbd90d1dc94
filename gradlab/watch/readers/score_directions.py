"""Generators that move the scores of what they make where the discriminator's own loss moves them: the sign is lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gradlab.watch.call_site import CallSite
from gradlab.watch.events import Violation
from gradlab.watch.followed_update import tensors_in
from gradlab.watch.graphs.advantages import SQUARES, inputs_of
from gradlab.watch.graphs.loss_graph import MAX_NODES, PRODUCTS, nodes_below, variable
from gradlab.watch.graphs.networks_between import weight_of
from gradlab.watch.graphs.node_lines import site_of
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker, listed

MAKERS = "gradlab_makers"
"""Key of the optimizers whose weights have made what a product is given, with a graph or without."""
NONE: frozenset[int] = frozenset()


@dataclass
class Scores:
    """What a last layer returns in one loss."""

    weight: Tensor
    owner: int
    makers: frozenset[int]
    """Other optimizers whose weights have made its input."""
    live: bool
    """Whether these get a gradient."""
    site: CallSite | None
    bounds: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Smallest and largest gradient."""

    @property
    def sign(self) -> int:
        """Of all of its gradients; 0 where some are positive and some negative."""
        low = min((float(each) for each, _ in self.bounds), default=0.0)
        high = max((float(each) for _, each in self.bounds), default=0.0)
        return 1 if low >= 0 < high else -1 if low < 0 >= high else 0


class ScoreDirections:
    """Compares the gradients of the scores of one update of two networks.

    A discriminator is known by its loss, which moves the scores of what another network has made one way, and those of
    anything else the other way. Squared scores go either way, and say nothing.
    """

    def __init__(self, trackers: Sequence[OptimizerTracker]) -> None:
        self.trackers = trackers
        self.forget()

    def forget(self) -> None:
        self.owners: dict[int, int] = {}
        """id of a weight -> index of its optimizer."""
        self.made_by: Any = WeakTensorKeyDictionary()
        self.scores: list[Scores] = []

    def begin(self, tracker: OptimizerTracker, without: list[Tensor], flat: list[Tensor]) -> bool:
        self.forget()
        self.owners = {id(p): t.index for t in self.trackers for p in t.params}
        return tracker.attempts == 1 and len(self.trackers) > 1

    def follow(self, name: str, func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        inputs, makers = tensors_in([*args, *kwargs.values()]), NONE
        for each in inputs:
            own = self.owners.get(id(each))
            makers |= self.made_by.get(each, NONE) if own is None else frozenset([own])
        for each in tensors_in([result]) if makers else ():
            self.made_by[each] = makers
            if each.grad_fn is not None:
                node: Any = each.grad_fn
                while node.name() not in PRODUCTS and len(inputs_of(node)) == 1:
                    node = inputs_of(node)[0]
                node.metadata.setdefault(MAKERS, makers)

    def at_backward(self, roots: list[Tensor]) -> None:
        for root in roots if len(roots) == 1 else ():
            for node, weight in last_layers(root.grad_fn):
                owner = self.owners.get(id(weight))
                if owner is not None:
                    reached = self.reached(node) - {owner}
                    makers = (node.metadata.get(MAKERS, NONE) | reached) - {owner}
                    found = Scores(weight, owner, makers, bool(reached), site_of(root.grad_fn))
                    self.scores.append(found)
                    node.register_prehook(lambda given, found=found: note(given, found))

    def reached(self, node: Any) -> frozenset[int]:
        """Optimizers whose weights get a gradient through a node; what is there may have been made before."""
        below = (self.owners.get(id(variable(each))) for each in nodes_below([node]))
        return frozenset(index for index in below if index is not None)

    def end(self) -> Iterator[Violation]:
        moved: dict[int, list[tuple[int, int, Scores]]] = {}
        """id of a weight -> the sign of what was made with a graph, and of what was made without, each once."""
        for scores in [each for each in self.scores if each.live and each.sign]:
            own = [each for each in self.scores if each.weight is scores.weight and each is not scores]
            fakes = {each.sign for each in own if each.makers == scores.makers and not each.live}
            others = {each.sign for each in own if not each.makers}
            if len(fakes) == 1 and others == {-sign for sign in fakes}:
                moved.setdefault(scores.owner, []).append((scores.sign, fakes.pop(), scores))
        for owner, found in moved.items():
            together = all(sign == fake for sign, fake, _ in found)
            whole = {id(each.weight) for _, _, each in found}
            if together and whole == {id(each.weight) for each in self.scores if each.owner == owner and each.live}:
                yield from self.named(found[0][2])
                break
        self.forget()

    def named(self, scores: Scores) -> Iterator[Violation]:
        pair = [self.trackers[i] for i in (scores.owner, *scores.makers)]
        if all(tracker.descends for tracker in pair):
            names = listed([tracker.names[0] for tracker in pair[1:]])
            detail = f"the scores of what {names} makes are moved where the discriminator's own loss moves them"
            yield "loss-reversed", scores.site, detail


def note(given: tuple[Tensor | None, ...], found: Scores) -> None:
    """At the backward pass of a last layer."""
    for each in given:
        if each is not None and each.numel():
            found.bounds.append((each.detach().min(), each.detach().max()))


def last_layers(root: Any) -> Iterator[tuple[Any, Tensor]]:
    """The products nearest below a loss whose results are not squared, with their weights."""
    queue, seen = [root] if root is not None else [], {root}
    while queue and len(seen) < MAX_NODES:
        node = queue.pop()
        inputs = inputs_of(node)
        if node.name() in PRODUCTS:
            weights = [weight for each in inputs if (weight := weight_of(each)) is not None and weight.dim() > 1]
            yield from ((node, weight) for weight in weights[-1:])
            continue
        if node.name() in SQUARES or (node.name() == "MulBackward0" and len(inputs) > 1):
            continue
        new = [each for each in inputs if each not in seen]
        seen |= set(new)
        queue += new
