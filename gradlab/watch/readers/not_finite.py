"""The first numbers that are not finite: the operation that has made them, read from the graph, and its line."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gradlab.watch.call_site import CallSite, call_site
from gradlab.watch.events import Violation
from gradlab.watch.followed_update import tensors_in
from gradlab.watch.graphs.loss_graph import MAX_NODES, is_packed, variable
from gradlab.watch.readers.error_terms import DISTANCES
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

MAX_ASKED = 8
"""Losses whose graphs are read at most."""
IN_A_ROW = 3
"""Updates in a row whose loss is no number, and whose gradient is finite."""
MAX_KNOWN = 8
"""Operations of a line's losses that are asked again in each update, while their graph is the same."""
MAX_ELEMENTS = 100_000
"""Of what such an operation keeps."""
MAX_PATH = 64
"""Nodes between such an operation and its loss at most."""
Path = list[tuple[int, str]]
"""From a loss down: the position among a node's inputs, and the name of the node that is there."""


@dataclass
class Origin:
    """The first operation whose result, or gradient, is not finite."""

    site: CallSite | None
    """Its line; that of the backward pass until it is known."""
    path: Path
    words: str
    tracker: OptimizerTracker | None = None
    update: int = 0
    is_followed: bool = False
    """Whether the update after it was followed, to find the line."""
    of_the_loss: bool = False
    """Whether the loss is no number, whatever its gradient is."""


def count(condition: Tensor, words: str) -> str:
    """Words, and how many elements they are true of; nothing if of none."""
    number = int(condition.sum())
    return f"{words} ({number} of {condition.numel()} elements)" if number else ""


def of_power(node: Any) -> str:
    exponent, base = node._saved_exponent, node._saved_self
    if not isinstance(exponent, (int, float)) or (float(exponent).is_integer() and exponent >= 0):
        return ""
    if float(exponent).is_integer() or exponent < 0:
        return count(base == 0, f"0 to the power of {exponent:g}")
    return count(base < 0, f"a negative number to the power of {exponent:g}") or (
        count(base == 0, f"0 to the power of {exponent:g}, whose gradient is infinite") if exponent < 1 else ""
    )


def of_division(node: Any) -> str:
    return count(node._saved_other == 0, "division by 0")


def of_root(node: Any) -> str:
    result = node._saved_result
    negative = count(result.isnan(), "the square root of a negative number")
    return negative or count(result == 0, "the square root of 0, whose gradient is infinite")


def of_logarithm(node: Any) -> str:
    return count(node._saved_self == 0, "the logarithm of 0") or count(
        node._saved_self < 0, "the logarithm of a negative number"
    )


def of_exponential(node: Any) -> str:
    return count(node._saved_result.isinf(), "an exponential that overflows")


def of_softmax(node: Any) -> str:
    return count(node._saved_result.isnan(), "a softmax of which all inputs are -inf, or one is not finite")


def of_nll(node: Any) -> str:
    none = node._saved_reduction == 1 and float(node._saved_total_weight) == 0
    return "the mean over targets of which none counts" if none else ""


def of_mean(node: Any) -> str:
    return "the mean of no elements" if math.prod(node._saved_self_sym_sizes) == 0 else ""


def of_arc(node: Any) -> str:
    return count(node._saved_self.abs() >= 1, "an arc function at the end of its range, or outside")


def of_error(node: Any) -> str:
    return count(
        node._saved_target.isnan(),
        "the error of a target that is no number, whose gradient a mask after it leaves as it is",
    )


READ: dict[str, Callable[[Any], str]] = {
    **dict.fromkeys(sorted(DISTANCES), of_error),
    "DivBackward0": of_division,
    "SqrtBackward0": of_root,
    "RsqrtBackward0": lambda node: count(node._saved_result.isinf(), "the reciprocal root of 0"),
    "ReciprocalBackward0": lambda node: count(node._saved_result.isinf(), "the reciprocal of 0"),
    "LogBackward0": of_logarithm,
    "Log2Backward0": of_logarithm,
    "Log10Backward0": of_logarithm,
    "ExpBackward0": of_exponential,
    "PowBackward0": of_power,
    "SoftmaxBackward0": of_softmax,
    "LogSoftmaxBackward0": of_softmax,
    "NllLossBackward0": of_nll,
    "NllLoss2DBackward0": of_nll,
    "MeanBackward0": of_mean,
    "StdBackward0": lambda node: count(node._saved_result.isnan(), "the standard deviation of one element"),
    "AcosBackward0": of_arc,
    "AsinBackward0": of_arc,
}
"""Name of a node -> what says in words why its result, or its gradient, is not finite."""


INFINITE = DISTANCES | {
    "DivBackward0",
    "SqrtBackward0",
    "LogBackward0",
    "PowBackward0",
    "AcosBackward0",
    "AsinBackward0",
}
"""Nodes of which the gradient may be infinite where the result is not."""


def may_be_infinite(node: Any) -> bool:
    """Whether it is such a node, and small enough to be asked again in each update."""
    if node.name() not in INFINITE or is_packed(node):
        return False
    try:
        kept = [getattr(node, name, None) for name in ("_saved_self", "_saved_other", "_saved_result")]
    except RuntimeError:  # what was saved is freed
        return False
    return all(each.numel() <= MAX_ELEMENTS for each in kept if isinstance(each, Tensor))


def origin(root: Tensor, others: list[Path] | None = None) -> tuple[Path, str] | None:
    """The first such node in the order of computation: the way to it, and what it is. others: takes the ways to nodes
    that may be such later."""
    if root.grad_fn is None:
        return None
    above: dict[Any, tuple[Any, int]] = {}
    """Node -> the node that its result goes into, and its position there."""
    stack: list[tuple[Any, Any, int, bool]] = [(root.grad_fn, None, 0, False)]
    while stack and len(above) < MAX_NODES:
        node, consumer, position, inputs_done = stack.pop()
        if inputs_done:
            try:
                if not is_packed(node) and (words := READ[node.name()](node)):
                    return path_to(node, above), words
            except (RuntimeError, AttributeError, TypeError):  # what was saved is freed, or is called otherwise
                pass
            continue
        if node in above:
            continue
        above[node] = consumer, position
        if (p := variable(node)) is not None and not bool(p.isfinite().all()):
            return None  # the weights are broken already
        if node.name() in READ:
            stack.append((node, None, 0, True))
            if others is not None and len(others) < MAX_KNOWN and may_be_infinite(node):
                others.append(path_to(node, above))
        stack += [(each, node, i, False) for i, (each, _) in enumerate(node.next_functions) if each is not None]
    return None


def path_to(node: Any, above: dict[Any, tuple[Any, int]]) -> Path:
    path: Path = []
    while node is not None:
        consumer, position = above[node]
        path.append((position, node.name()))
        node = consumer
    return path[::-1]


def nodes_along(root: Any, path: Path) -> list[Any] | None:
    """The nodes of a way down a graph; None if it is another graph."""
    nodes = [root]
    for i, name in path[1:]:
        inputs = nodes[-1].next_functions
        if i >= len(inputs) or inputs[i][0] is None or inputs[i][0].name() != name:
            return None
        nodes.append(inputs[i][0])
    return nodes


class NotFinite:
    """Asks the graphs of the first losses, and of one that is not finite; a line is found in the next update."""

    def __init__(self) -> None:
        self.num_asked = 0
        self.candidate: Origin | None = None
        """Of the latest loss."""
        self.found: Origin | None = None
        """Of the first whose gradient was not finite at a step."""
        self.in_a_row = 0
        """Updates in a row whose loss is no number."""
        self.known: dict[CallSite | None, list[Path]] = {}
        """Line of a backward pass -> ways to operations whose gradient may be infinite."""
        self.sites: dict[Any, CallSite | None] = {}
        """Node -> line of the call that has made it."""

    def on_checkpoint(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Reading what such a graph has saved would run its forward pass again."""
        self.num_asked = MAX_ASKED

    def ask(self, site: CallSite | None, roots: list[Tensor], loss: Any, is_first: bool) -> None:
        """Before a backward pass. loss: a number, or a tensor on a device. is_first: it is one of the first at its
        line."""
        self.candidate = None
        if self.found or len(roots) != 1 or loss is None:
            return
        is_number = isinstance(loss, float)
        if is_number and not is_first and math.isfinite(loss):
            if known := self.known.get(site):
                found = self.ask_again(roots[0].grad_fn, known)
            else:
                return
        elif self.num_asked < MAX_ASKED and (is_first or is_number):
            self.num_asked += 1
            others: list[Path] = []
            found = origin(roots[0], others)
            self.known[site] = [path for path in others if len(path) <= MAX_PATH]
        else:
            return
        no_number = is_number and math.isnan(loss)
        no_number &= found is not None and not found[1].startswith("the mean")  # a batch may have nothing that counts
        self.candidate = Origin(site, *found, of_the_loss=no_number) if found else None

    def ask_again(self, root: Any, known: list[Path]) -> tuple[Path, str] | None:
        """A finite loss may have a gradient that is not: the same operations as in the first updates."""
        for path in known:
            node = (nodes_along(root, path) or [None])[-1]
            with contextlib.suppress(RuntimeError):  # what was saved is freed
                if node is not None and not is_packed(node) and (words := READ[node.name()](node)):
                    return path, words
        return None

    def at_step(self, tracker: OptimizerTracker, norm: Any, before: Any) -> None:
        """Is the gradient not finite, and is known why? before: what it was before the loop wrote to it, if it did."""
        candidate, self.candidate = self.candidate, None
        norms = [float(each) for each in (norm, before) if each is not None] if candidate is not None else []
        self.in_a_row = self.in_a_row + 1 if candidate is not None and candidate.of_the_loss else 0
        if candidate is not None and (self.in_a_row == IN_A_ROW or not all(map(math.isfinite, norms))):
            candidate.tracker, candidate.update = tracker, tracker.attempts + 1
            self.found = candidate

    @property
    def is_asking(self) -> bool:
        """Whether a step may tell of something."""
        return self.candidate is not None or self.in_a_row > 0

    @property
    def is_pending(self) -> bool:
        """Whether a line is to be found."""
        return self.found is not None and not self.found.is_followed

    def begin(self, tracker: OptimizerTracker, without: list[Tensor], flat: list[Tensor]) -> bool:
        return self.is_pending

    def follow(self, name: str, func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        for each in tensors_in([result]):
            if each.grad_fn is not None and each.grad_fn not in self.sites:
                self.sites[each.grad_fn] = call_site()

    def at_backward(self, roots: list[Tensor]) -> None:
        """The same way down this graph: the line of the node, or of the call that it is a part of."""
        sites, self.sites = self.sites, {}  # a node keeps its graph
        if self.found is None or self.found.is_followed or len(roots) != 1 or roots[0].grad_fn is None:
            return
        if (nodes := nodes_along(roots[0].grad_fn, self.found.path)) is not None:
            known = [site for node in nodes if (site := sites.get(node)) is not None]
            self.found.site, self.found.is_followed = known[-1] if known else self.found.site, True

    def end(self) -> Iterator[Violation]:
        if self.found is not None:
            self.found.is_followed = True
        self.sites = {}
        yield from ()
