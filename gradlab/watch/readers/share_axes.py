"""Weighted sums whose weights come from a softmax over the samples, or the queries, and not over what is added up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gradlab.watch.call_site import CallSite, call_site, format_site
from gradlab.watch.events import Violation
from gradlab.watch.followed_update import NETWORKS, Reader, argument, tensors_in
from gradlab.watch.readers.loss_arguments import are_shares
from gradlab.watch.readers.similarities import compared
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

TURNS = {"unsqueeze", "view", "reshape", "squeeze", "__getitem__", "transpose", "permute", "__get__", "contiguous"}
VIEWS = {"unsqueeze", "view", "reshape", "squeeze", "flatten", "contiguous"}
EXCHANGES = {"transpose", "permute", "__get__"}
MATMULS = {"matmul", "__matmul__", "bmm"}

KEPT = {"log", "clamp", "clamp_min", "add", "__add__", "neg", "__neg__"}
PICKS = {"gather", "__getitem__"}
DIVISIONS = {"div", "__truediv__", "true_divide", "divide", "div_", "__itruediv__"}
PRODUCTS = {"mul", "__mul__", "__rmul__"}
NORMS = {"layer_norm", "rms_norm", "normalize", "group_norm", "instance_norm"}
"""Functions whose result is the same of a multiple of what they are given."""


class ShareAxes(Reader):
    """Follows what softmax returns to the sums of one update."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.shares: Any = WeakTensorKeyDictionary()
        """Tensor that is such weights, in whatever shape -> the line of the softmax, and whether queries and keys are
        where the product of both, from which they come, has them."""
        self.products: Any = WeakTensorKeyDictionary()
        """Product with such weights -> the weights, and that line."""
        self.classes: Any = WeakTensorKeyDictionary()
        """(N, ..., C) that sums to 1 over the first dimension, or its logarithm, or (M, C) of it -> the line."""
        self.samples: set[int] = set()
        """Samples that losses were computed of."""
        self.found: list[tuple[int, CallSite | None, str]] = []
        """Size of the first dimension if that is to be the samples, else 0; line and words."""
        self.gates: Any = WeakTensorKeyDictionary()
        """Such weights that sum to 1 over the first dimension, with several in each row, in whatever shape -> the line
        of the softmax."""
        self.gated: Any = WeakTensorKeyDictionary()
        """What they were multiplied with, in whatever shape -> that line."""
        self.sums: Any = WeakTensorKeyDictionary()
        """A sum with such weights, in whatever shape -> what was found, and what its weights sum to."""

    def begin(self, tracker: OptimizerTracker, without: list[Tensor], flat: list[Tensor]) -> bool:
        self.forget()
        return tracker.attempts == 1

    def follow(self, name: str, func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        if not isinstance(result, Tensor):
            return
        if not result.requires_grad:
            if name in ("softmax", "log_softmax"):  # of a teacher
                self.follow_rows(name, result)
            return
        given = [each for each in args if isinstance(each, Tensor)]
        self.follow_gates(name, given, result)
        if name == "kl_div" and len(given) == 2 and given[0].shape == given[1].shape and given[0].dim() > 1:
            self.judge_divergence(given, [True, bool(argument(args, kwargs, 5, "log_target"))])
        if given and given[0] in self.classes:
            divided = name in DIVISIONS and len(given) == 2
            if name in KEPT or divided or keeps(name, given[0], result, -1):
                self.classes[result] = self.classes[given[0]]
        if name.endswith("_loss") or "entropy" in name:
            self.samples |= {len(each) for each in tensors_in(args) if each.dim()}
        elif name in ("softmax", "log_softmax"):
            if name == "softmax":
                self.shares[result] = call_site(), bool(given) and compared(given[0]) is not None
            self.follow_rows(name, result)
        elif (known := [each for each in given if each in self.classes and each.dim() == 2]) and name in PICKS:
            self.found += picked(name, args, known[0], self.classes[known[0]])
        elif any(each in self.sums for each in given) and name in TURNS | NORMS | DIVISIONS | PRODUCTS:
            self.follow_sum(name, given, result)
        elif len(given) == 1 and name in TURNS and given[0] in self.shares:
            site, placed = self.shares[given[0]]
            self.shares[result] = site, placed and name not in EXCHANGES
        elif len(given) == 2 and name in PRODUCTS:
            known = [each for each in given if each in self.shares and each.dim() == result.dim()]
            if len(known) == 1:
                self.products[result] = known[0].detach(), self.shares[known[0]][0]
        elif name == "sum" and given and given[0] in self.products:
            dim = argument(args, kwargs, 1, "dim")
            if isinstance(dim, int):
                weights, site = self.products[given[0]]
                self.judge(result, weights, site, dim % given[0].dim())
        elif name in MATMULS and len(given) == 2:
            for i, each in enumerate(given):
                if each in self.shares and each.dim() > 2:
                    site, placed = self.shares[each]
                    others = list(range(1, each.dim() - 1)) if i == 0 and placed else []
                    self.judge(result, each.detach(), site, each.dim() - 1 - i, others)
        elif name == "einsum" and isinstance(args[0], str):
            operands = tensors_in(args[1:])
            for i, each in enumerate(operands):
                if each in self.shares and (summed := summed_by(args[0], i, len(operands))) is not None:
                    site, placed = self.shares[each]
                    others = [dim for dim in range(1, each.dim()) if dim != summed] if placed else []
                    self.judge(result, each.detach(), site, summed, others)

    def follow_rows(self, name: str, result: Tensor) -> None:
        """Does a softmax go over the first dimension, and not over another?"""
        shares = result.detach() if name == "softmax" else result.detach().exp()
        if result.dim() < 2 or len(result) < 2 or not are_shares(shares, 0):
            return
        if result.shape[-1] > 1 and not are_shares(shares, -1):
            self.classes[result] = call_site()
        if name == "softmax" and result.numel() > len(result) and result.shape != (len(result),) * 2:
            self.gates[result] = call_site()

    def follow_gates(self, name: str, given: list[Tensor], result: Tensor) -> None:
        """Does what such weights are multiplied with go on to a layer, each row by itself?"""
        for known in (self.gates, self.gated):
            if given and given[0] in known and keeps(name, given[0], result, 0):
                known[result] = known[given[0]]
        for gate in [each for each in given if each in self.gates] if name in PRODUCTS else ():
            if len(given) == 2 and result.dim() and len(result) == len(gate):
                self.gated[result] = self.gates[gate]
        if name in NETWORKS and given and given[0] in self.gated and len(result) == len(given[0]):
            self.found.append((len(result), self.gated[given[0]], "its results sum to 1 over the samples"))

    def follow_sum(self, name: str, given: list[Tensor], result: Tensor) -> None:
        """Is it divided by what its weights sum to, or made independent of that?"""
        total = next(each for each in given if each in self.sums)
        others = [each for each in given if each is not total and each.numel() > 1]
        found, rows = self.sums[total]
        if name in TURNS:
            self.sums[result] = found, rows
        elif name in NORMS or (others and (name in DIVISIONS or are_inverse(others[0], rows))):
            self.found = [each for each in self.found if each is not found]

    def judge(
        self, total: Tensor, weights: Tensor, site: CallSite | None, summed: int, others: Iterable[int] = ()
    ) -> None:
        """total: the sum. site: the line of the softmax. summed: the dimension that is added up. others: of attention,
        the queries and the heads."""
        if are_shares(weights, summed) or weights.shape[summed] < 2:
            return
        words = f"the weights of the sum over dimension {summed} at {format_site(call_site())} sum to 1 over dimension"
        if summed and len(weights) > 1 and are_shares(weights, 0):
            self.found.append((len(weights), site, f"{words} 0, the samples"))
        elif wrong := [d for d in others if weights.shape[d] > 1 and are_shares(weights, d)]:
            if wrong[0] == weights.dim() - 2 and weights.shape[wrong[0]] != weights.shape[summed]:
                return  # queries that compete for what is added up
            self.found.append((0, site, f"{words} {wrong[0]}"))
        else:
            return
        self.sums[total] = self.found[-1], weights.sum(summed)

    def judge_divergence(self, sides: list[Tensor], logarithms: list[bool]) -> None:
        """Does one side sum to 1 over the samples alone, and the other one over the classes?"""
        shares = [each.detach().exp() if log else each.detach() for each, log in zip(sides, logarithms, strict=True)]
        for side, own, other in zip(sides, shares, reversed(shares), strict=True):
            if side in self.classes and are_shares(other, -1) and not are_shares(own, -1) and are_shares(own, 0):
                words = "one side of the divergence sums to 1 over dimension 0, the samples, the other over the classes"
                self.found.append((0, self.classes[side], words))

    def end(self) -> Iterator[Violation]:
        known = [("softmax-axis", site, words) for size, site, words in self.found if not size or size in self.samples]
        yield from known[:1]
        self.forget()


def summed_by(equation: str, place: int, number: int) -> int | None:
    """The one dimension of an operand that `einsum` adds up; None where it is not one."""
    given, arrow, out = equation.replace(" ", "").partition("->")
    letters = given.split(",")
    if not arrow or len(letters) != number or "." in equation:
        return None
    lost = [i for i, letter in enumerate(letters[place]) if letter not in out]
    return lost[0] if len(lost) == 1 else None


def are_inverse(factors: Tensor, rows: Tensor) -> bool:
    if factors.numel() != rows.numel():
        return False
    return torch.allclose(factors.detach().flatten() * rows.flatten(), torch.ones_like(rows).flatten(), rtol=1e-2)


def keeps(name: str, given: Tensor, result: Tensor, dim: int) -> bool:
    """Whether it is a view that leaves the size of a dimension, and exchanges none."""
    return name in VIEWS and bool(result.dim()) and result.shape[dim] == given.shape[dim]


def picked(name: str, args: list[Any], shares: Tensor, site: CallSite | None) -> list[tuple[int, CallSite | None, str]]:
    """Of shares over the samples: labels that pick a class of each sample, by an index."""
    rows, classes = shares.shape
    labels: Any = None
    if name == "gather" and args[1] in (1, -1):
        labels = args[2].flatten()
    elif name == "__getitem__" and isinstance(args[1], tuple) and len(args[1]) == 2:
        first, second = args[1]
        if isinstance(first, Tensor) and isinstance(second, Tensor) and first.shape == second.shape:
            labels = second.flatten() if torch.equal(first.cpu(), torch.arange(len(first))) else None
    if labels is None or len(labels) != rows or (rows == classes and len(labels.unique()) == rows):
        return []  # each row is compared with each other, as of two views
    return [(0, site, "the probabilities of the classes sum to 1 over dimension 0, and not over the classes")]
