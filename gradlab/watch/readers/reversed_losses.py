"""Losses that are an error with its sign reversed: it is made as large as can be, and there is no bound."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from gradlab.watch.call_site import CallSite, is_direct
from gradlab.watch.events import Violation
from gradlab.watch.followed_update import FOLLOWED, Reader
from gradlab.watch.making_lines import made_at
from gradlab.watch.readers.error_terms import ErrorTerm, are_learnt, error_terms, turning_site
from gradlab.watch.readers.last_layers import Head, compares, overlap
from gradlab.watch.readers.learnt_errors import is_learnt, of_nothing
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

NEGATED = {"neg", "negative", "__neg__"}
MINUS = NEGATED | {"sub", "subtract", "__sub__", "__rsub__", "rsub"}


class ReversedLosses(Reader):
    """Asks the backward passes of the second to sixth update which way they move the errors in their losses.

    An error must be moved the wrong way for every sample, in each of these updates, and no other term may train the
    layer that it is of: beside others, or in a network that is trained by another loss, it may have to grow. So it may
    where it is small at the beginning: a trained network is to forget.
    """

    def __init__(self) -> None:
        self.site: CallSite | None = None
        """Line of the first of them; lines are known in the first update alone."""
        self.forget()

    def forget(self) -> None:
        self.terms: list[tuple[ErrorTerm, CallSite | None]] = []
        """Errors that were not small, and where their sign is turned."""
        self.others: set[Head] = set()
        """Last layers of other terms."""
        self.differences: dict[Any, Tensor] = {}
        """Node -> difference between an output and data of its shape, or between two outputs."""
        self.turns: set[Any] = set()
        """Nodes of minus signs in the user's own lines, in the first update."""
        self.sizes: dict[Any, Tensor] = {}
        """Node -> mean square of the data."""

    @property
    def is_pending(self) -> bool:
        """An episode that is lost may turn the sign of one update, and of another one."""
        return self.site is not None

    def begin(self, tracker: OptimizerTracker, without: list[Tensor], flat: list[Tensor]) -> bool:
        self.forget()
        self.tracker = tracker
        if tracker.attempts > FOLLOWED[1]:
            self.site = None
        return (tracker.descends or tracker.ascends) and (tracker.attempts == FOLLOWED[0] or self.is_pending)

    def follow(self, name: str, func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        if name not in MINUS or not isinstance(result, Tensor) or not result.requires_grad:
            return
        if self.tracker.attempts == FOLLOWED[0] and is_direct():
            self.turns.add(result.grad_fn)
        if name not in NEGATED:
            known = [each for each in args[:2] if isinstance(each, Tensor) and not each.requires_grad]
            if not known or (result.dim() and known[0].dim() == result.dim() and len(known[0]) == len(result)):
                self.differences[result.grad_fn] = result.detach()
            if known:
                self.sizes[result.grad_fn] = known[0].detach().float().square().mean()

    def at_backward(self, roots: list[Tensor]) -> None:
        first = self.tracker.attempts == FOLLOWED[0]
        for root in roots:
            if root.grad_fn is None:
                continue
            terms, others = error_terms(root.grad_fn, self.differences)
            self.others |= others
            for term in terms:
                if first and is_learnt(term.node):
                    self.others |= term.heads
                    continue
                if first and term.likelihoods is not None and not compares(term.node):
                    term.of_nothing = of_nothing(term.node)
                elif first and term.difference is not None:
                    term.of_nothing = self.sizes.get(term.node)
                site = turning_site(root.grad_fn, term.node, self.turns) if first else None
                self.terms.append((term, site))
                term.watch(1 if self.tracker.descends else -1)

    def end(self) -> Iterator[Violation]:
        likely = [term for term, _ in self.terms if term.likelihoods is not None]
        learnt = [
            *(likely if are_learnt(likely) else []),
            *(t for t, _ in self.terms if t not in likely and are_learnt([t])),
        ]
        enlarged = [t for t, _ in self.terms if t.enlarged and t not in learnt and all(map(bool, t.enlarged))]
        rest = self.others.union(*(term.heads for term, _ in self.terms if term not in enlarged))
        found = [
            (term, site)
            for term, site in self.terms
            if term in enlarged and {key for key, _ in term.heads} & self.tracker.ids and not overlap(term.heads, rest)
        ]
        if found and self.tracker.attempts == FOLLOWED[0]:
            self.site = found[0][1]
        if found and self.tracker.attempts == FOLLOWED[1] and self.tracker.descends:
            yield "loss-reversed", self.site, ""
        elif found and self.tracker.attempts == FOLLOWED[1] and self.tracker.ascends:
            detail = "it is given to an optimizer with maximize=True"
            yield made_at("loss-reversed", self.tracker.optimizer, self.site, detail)
        if not found or self.tracker.attempts == FOLLOWED[1]:
            self.site = None
        self.forget()
