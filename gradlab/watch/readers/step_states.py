"""Recurrent states that are detached in every step: nothing is learnt over more than one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gradlab.watch.call_site import CallSite, call_site
from gradlab.watch.events import Violation
from gradlab.watch.followed_update import tensors_in
from gradlab.watch.graphs.advantages import inputs_of
from gradlab.watch.graphs.loss_graph import MAX_NODES, PRODUCTS, variable
from gradlab.watch.graphs.networks_between import weight_of
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker, listed

CUTS = {"detach", "__get__", "detach_"}
"""Functions that return the same values without a graph; `__get__` is that of `.data`."""
STEPS = 3
"""States in a chain at least, of which each was computed from the one before."""
MARK = "gradlab_state"
"""Key of the list that a state is in, and of its place there, in the metadata of its node."""


@dataclass
class State:
    """A value that was detached."""

    site: CallSite | None
    before: int | None
    """Number of the state that it was computed of."""
    weights: frozenset[int] = field(default_factory=frozenset)
    """ids of the weights that have computed it since."""


class StepStates:
    """Follows what is detached in one update from one call of a layer to the next.

    All states of a chain must be detached at one line and have a part in one loss, through layers of their own: what a
    loss compares with a target itself may be fed back without its gradient. Where any graph leads from one step to the
    next, as a second state beside the first, nothing is said.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.states: list[State] = []
        self.latest: Any = WeakTensorKeyDictionary()
        """Tensor -> number of the latest state that it was computed of."""
        self.used: set[int] = set()
        """Numbers of the states that the loss depends on, through a layer."""
        self.plain: set[int] = set()
        """Those that it depends on without a layer in between."""
        self.linked = False

    def begin(self, tracker: OptimizerTracker, without: list[Tensor], flat: list[Tensor]) -> bool:
        self.forget()
        self.tracker = tracker
        return tracker.attempts == 1

    def follow(self, name: str, func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        inputs, outputs = tensors_in([*args, *kwargs.values()]), tensors_in([result])
        known = [self.latest[each] for each in inputs if each in self.latest]
        if name in CUTS and len(inputs) == 1 == len(outputs) and is_cut(inputs[0], outputs[0]):
            self.add(inputs[0], outputs[0], max(known, default=None))
            return
        for each in outputs if known else ():
            self.latest[each] = max(known)

    def add(self, given: Tensor, cut: Tensor, before: int | None) -> None:
        node: Any = given.grad_fn
        number = self.number_of(node)
        if number is None:
            number = len(self.states)
            node.metadata[MARK] = self.states, number
            weights, uses = layers(node)
            self.linked |= uses > 1 and before is not None
            self.states.append(State(call_site(), before, weights))
        self.latest[cut] = number

    def number_of(self, node: Any) -> int | None:
        """None of one of an earlier update."""
        states, number = node.metadata.get(MARK, (None, None))
        return number if states is self.states else None

    def at_backward(self, roots: list[Tensor]) -> None:
        for root in roots if self.states else ():
            queue: list[tuple[Any, bool]] = [(root.grad_fn, False)]
            seen = set(queue)
            while queue and len(seen) < MAX_NODES:
                node, behind = queue.pop()
                if node is None:
                    continue
                if (number := self.number_of(node)) is not None:
                    (self.used if behind else self.plain).add(number)
                behind |= node.name() in PRODUCTS
                new = {(each, behind) for each in inputs_of(node)} - seen
                seen |= new
                queue += new

    def end(self) -> Iterator[Violation]:
        for number in sorted(self.used - self.plain, reverse=True):
            chain = [number]
            while (before := self.states[chain[-1]].before) is not None:
                chain.append(before)
            states = [self.states[each] for each in chain]
            alike = [each for each in states if each.weights == states[0].weights and each.site == states[0].site]
            trained = states[0].weights & self.tracker.ids
            inside = [each for each in chain if each in self.used - self.plain]
            if len(alike) >= STEPS and len(inside) >= STEPS and trained and not self.linked:
                names = [n for p, n in zip(self.tracker.params, self.tracker.names, strict=True) if id(p) in trained]
                detail = f"in every step, {len(chain)} in one loss: {listed(names)} learn nothing over more than one"
                yield "hard-value", states[0].site, detail
                break
        self.forget()


def is_cut(given: Tensor, result: Tensor) -> bool:
    """Of what a layer returns for several samples."""
    return given.grad_fn is not None and given.dim() > 1 and not result.requires_grad and result.is_floating_point()


def layers(node: Any) -> tuple[frozenset[int], int]:
    """ids of the weights that products below have, and how often one of them is used at most."""
    queue, seen = [node], {node}
    uses: dict[int, int] = {}
    while queue and len(seen) < MAX_NODES:
        node = queue.pop()
        if node.name() in PRODUCTS:
            for each in inputs_of(node):
                if (weight := weight_of(each)) is not None:
                    uses[id(weight)] = uses.get(id(weight), 0) + 1
        new = {each for each in inputs_of(node) if variable(each) is None} - seen
        seen |= new
        queue += new
    return frozenset(uses), max(uses.values(), default=0)
