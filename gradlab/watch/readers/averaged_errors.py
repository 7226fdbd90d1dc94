"""Errors that are averaged before they are squared: those above and those below cancel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gradlab.watch.call_site import CallSite, call_site
from gradlab.watch.events import Violation
from gradlab.watch.graphs.advantages import inputs_of
from gradlab.watch.graphs.loss_graph import IDENTITIES
from gradlab.watch.readers.drawn_values import DISTANCES
from gradlab.watch.readers.output_ranges import DIFFERENCES, MIN_SAMPLES, are_beside
from gradlab.watch.readers.reversed_losses import last_weights, terms_of
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

WORDS = "a square is given the mean of the errors, in which those above and those below cancel"
ROOTS = IDENTITIES | {"SqrtBackward0", "AddBackward0", "MulBackward0", "DivBackward0"}


class AveragedErrors:
    """Follows the differences of predictions and targets of one update.

    The square must be all that trains the layer: beside other terms it may be what keeps a mean where it is to be.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.errors: Any = WeakTensorKeyDictionary()
        self.means: Any = WeakTensorKeyDictionary()
        self.squares: list[tuple[Any, CallSite | None]] = []
        """Nodes of squares of such means, and lines."""
        self.found: CallSite | None = None

    def begin(self, tracker: OptimizerTracker, without: list[Tensor], flat: list[Tensor]) -> bool:
        self.forget()
        return tracker.attempts == 1

    def follow(self, name: str, func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        tensors = bool(args) and isinstance(args[0], Tensor) and isinstance(result, Tensor)
        if not tensors or result.grad_fn is None:
            return
        other = args[1] if len(args) > 1 else None
        if name in DIFFERENCES and isinstance(other, Tensor) and args[0].numel() >= MIN_SAMPLES:
            target = other if args[0].requires_grad else args[0]
            if are_beside(args[0], other) and bool((target != target.flatten()[0]).any()):
                self.errors[result] = True
        elif name == "mean" and args[0] in self.errors and result.dim() == 0:
            self.means[result] = True
        elif args[0] in self.means and (name in DISTANCES or (name == "mul" and other is args[0])):
            self.squares.append((result.grad_fn, call_site()))

    def at_backward(self, roots: list[Tensor]) -> None:
        squares, self.squares = dict(self.squares), []  # a node keeps its graph
        for root in roots if squares else ():
            terms = [node for node, _ in terms_of(root.grad_fn)]
            for i, term in enumerate(terms):
                node: Any = term
                while node not in squares and node.name() in ROOTS and len(live := inputs_of(node)) == 1:
                    node = live[0]
                others = set[int]().union(*(last_weights(each) for each in terms[:i] + terms[i + 1 :]))
                if node in squares and not last_weights(node) & others:
                    self.found = squares[node]

    def end(self) -> Iterator[Violation]:
        if self.found is not None:
            yield "loss-input", self.found, WORDS
        self.forget()
