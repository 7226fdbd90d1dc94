"""Terms of a loss that are computed, and maybe logged, and that never go backward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gradlab.watch.call_site import CallSite, call_site
from gradlab.watch.events import Violation
from gradlab.watch.followed_update import FOLLOWED, LATE, argument, tensors_in
from gradlab.watch.graphs.advantages import below
from gradlab.watch.graphs.loss_graph import PRODUCTS, is_of_activations, nodes_below
from gradlab.watch.readers.hard_values import ADDITIONS
from gradlab.watch.readers.thrown_losses import IN_A_ROW, REDUCTIONS
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker, listed
from gradlab.watch.uses_in_text import may_be_used_later

NUMBER = "gradlab_term"
"""Key of the list of numbers that a number is in, and of its place there, in the metadata of its node: a node that is
kept would keep its graph, and may be one of an earlier update."""


Unused = tuple["CallSite | None", int]
"""Line of a number, and which of the terms of a sum it is."""


@dataclass
class Term:
    """A single number with a graph."""

    site: CallSite | None
    parents: list[int]
    """Of the numbers that it was computed of."""
    is_sum: bool
    is_loss: bool
    """Whether several elements were reduced to it, or to what it was computed of."""
    weights: frozenset[int]
    """ids of the weights that it gives a gradient; nothing where no layer has computed it."""


class UnusedTerms:
    """Follows the single numbers of the second update and of some that are late: a term may be added after a while, or
    the tasks may take turns.

    One that does not go backward may be a metric. It is none where weights without any other loss have made it, or
    where it was added to the very loss that goes backward, and the sum was left. Where the text may use it later in the
    training, nothing is said.
    """

    def __init__(self) -> None:
        self.earlier: dict[int, dict[Unused, str]] = {}
        """Index of an optimizer -> what was found in the first of these updates, and in all since."""
        self.is_pending = False
        self.forget()

    def forget(self) -> None:
        self.terms: list[Term] = []
        self.used: set[int] = set()
        """Numbers of those that a backward pass went through."""

    def begin(self, tracker: OptimizerTracker, without: list[Tensor], flat: list[Tensor]) -> bool:
        self.forget()
        self.tracker, self.without = tracker, {id(p) for p in without if p.requires_grad}
        return tracker.attempts in (FOLLOWED[0], LATE) or self.is_pending

    def follow(self, name: str, func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        if name == "grad":
            self.at_backward(tensors_in([argument(args, kwargs, 0, "outputs")]))
        inputs = [each for each in tensors_in([*args, *kwargs.values()]) if each.grad_fn is not None]
        if not isinstance(result, Tensor) or result.numel() != 1 or result.grad_fn is None:
            return
        node: Any = result.grad_fn
        if self.number_of(node) is None:
            parents = [n for each in inputs if (n := self.number_of(each.grad_fn)) is not None]
            node.metadata[NUMBER] = self.terms, len(self.terms)
            weights, _ = below(node)
            known = frozenset(weights) if is_of_activations(node) else frozenset[int]()
            is_loss = "loss" in name or "entropy" in name or name == "kl_div"
            is_loss |= name in REDUCTIONS and bool(inputs) and inputs[0].numel() > 1
            is_loss |= any(self.terms[each].is_loss for each in parents)
            self.terms.append(Term(call_site(), parents, name in ADDITIONS and len(inputs) > 1, is_loss, known))

    def at_backward(self, roots: list[Tensor]) -> None:
        nodes = nodes_below((root.grad_fn for root in roots), PRODUCTS) if self.terms else ()
        self.used |= {number for node in nodes if (number := self.number_of(node)) is not None}

    def number_of(self, node: Any) -> int | None:
        terms, number = node.metadata.get(NUMBER, (None, None))
        return number if terms is self.terms else None

    def is_used(self, number: int) -> bool:
        """Whether it, or anything that it was computed of, goes backward."""
        return number in self.used or any(self.is_used(each) for each in self.terms[number].parents if each < number)

    def end(self) -> Iterator[Violation]:
        found, index = dict(self.judged()) if self.used else {}, self.tracker.index
        before = found if self.tracker.attempts == FOLLOWED[0] else self.earlier.get(index, {})
        self.earlier[index] = {key: words for key, words in found.items() if key in before}
        self.is_pending = LATE <= self.tracker.attempts < LATE + IN_A_ROW and bool(self.earlier[index])
        if self.tracker.attempts == LATE + IN_A_ROW:
            yield from (
                ("losses-thrown-away", site, words) for (site, _), words in list(self.earlier[index].items())[:1]
            )
        self.forget()

    def judged(self) -> Iterator[tuple[Unused, str]]:
        """What does not go backward now, and what is said."""
        for number, term in enumerate(self.terms):
            own = term.weights
            if number in self.used or not own or not own <= self.tracker.ids or may_be_used_later(term.site):
                continue
            parents = enumerate(term.parents)
            parts = [i for i, each in parents if self.terms[each].weights and not self.is_used(each)]
            if term.is_sum and set(term.parents) & self.used and parts:
                yield (
                    (term.site, parts[0]),
                    "the sum is left, and the loss that it was to be added to goes backward alone",
                )
            elif term.is_loss and (alone := own & self.without) and not self.is_used(number):
                names = [n for p, n in zip(self.tracker.params, self.tracker.names, strict=True) if id(p) in alone]
                yield (term.site, 0), f"it is the only loss of {listed(names)}, and does not go backward"
