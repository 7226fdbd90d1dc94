"""The errors in a loss: places at which the sign of the gradient says whether a step makes them small or large."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from gradlab.watch.call_site import CallSite
from gradlab.watch.graphs.advantages import inputs_of
from gradlab.watch.graphs.comparisons import is_normalised
from gradlab.watch.graphs.loss_graph import IDENTITIES, MAX_NODES, REGRESSIONS, is_packed, split
from gradlab.watch.graphs.node_lines import site_of
from gradlab.watch.readers.class_losses import EPSILONS, TURNS, down
from gradlab.watch.readers.last_layers import Head, heads_below, part_of
from gradlab.watch.readers.learnt_errors import UNLEARNT, logarithms

DISTANCES = {*REGRESSIONS, "L1LossBackward0"}
BOUNDED = ("TanhBackward", "SigmoidBackward", "SoftmaxBackward")
ERRORS = DISTANCES | {"NllLossBackward0", "NllLoss2DBackward0", "BinaryCrossEntropyBackward0"}
ERRORS |= {"BinaryCrossEntropyWithLogitsBackward0", "CtcLossBackward0", "MultiMarginLossBackward0"}
CHOICES = {"GatherBackward0", "IndexBackward0", "SelectBackward0", "DiagonalBackward0"}
SUMS = {"AddBackward0", "SubBackward0", "RsubBackward0", "RsubBackward1"}
EVEN = {"PowBackward0", "AbsBackward0", "LinalgVectorNormBackward0", "NormBackward0", "NormBackward1", "CoshBackward0"}
PASSED = IDENTITIES | CHOICES | EVEN
PASSED |= {f"{name}Backward{i}" for name in ("Mean", "Sum", "Squeeze", "Log", "Log10", "Log1P", "Exp") for i in (0, 1)}
PASSED |= {
    f"{name}Backward0"
    for name in ("Neg", "Sqrt", "Softplus", "View", "UnsafeView", "Transpose", "T", "Stack", "Logsumexp")
}
PASSED |= {"LogsumexpBackward0", "CatBackward0", "ReshapeAliasBackward0", "SliceBackward0", "UnbindBackward0"}
"""Nodes between a loss and its terms. What bounds a term, as a hinge does, is none: up to its bound it may grow."""
LOGARITHMS = {"LogSoftmaxBackward0", "LogSigmoidBackward0"}
NESTED = {"LogBackward0", "Log10Backward0", "SqrtBackward0"}
POSITIVE = ("Exp", "Softplus", "Sigmoid", "Softmax", "Pow", "Sqrt", "Reciprocal")
"""Beginnings of the names of nodes whose results have one sign."""
SAME = 1e-3
"""Distance from 1 of a sum of shares."""


@dataclass(eq=False)
class ErrorTerm:
    """An error in a loss."""

    node: Any
    heads: set[Head]
    """Of the outputs that it is of."""
    grows: bool = False
    """Whether it is no error, but a likelihood or similarity, which is to be large."""
    likelihoods: Tensor | None = None
    """Logarithms of probabilities that it is."""
    difference: Tensor | None = None
    """Between an output and data, of which the error is a function that grows with it."""
    labels: Tensor | None = None
    """What chances are to be: where they are not, these have to be small."""
    of_nothing: Tensor | float | None = None
    """The error of an answer that knows nothing, in the update in which it is asked for."""
    error: Tensor | None = None
    """The same of these answers."""
    sign: int = 1
    enlarged: list[Tensor] = field(default_factory=list)
    """Whether the gradients that came to it make the error large, one for each backward pass."""

    def watch(self, sign: int) -> None:
        """Ask the backward pass that comes next; sign: 1 if steps make losses small, else -1. The node, which keeps its
        graph, is given up."""
        self.sign = sign
        self.node.register_prehook(self.note)
        self.node = None

    def note(self, given: tuple[Tensor | None, ...]) -> None:
        for gradient in given:
            if gradient is not None and gradient.numel():
                self.enlarged.append(self.judge(gradient.detach() * self.sign))

    def judge(self, gradient: Tensor) -> Tensor:
        if self.labels is not None:
            wrong = torch.where(self.labels, gradient, -gradient)
            return (wrong >= 0).all() & (wrong > 0)[self.labels].any() & (wrong > 0)[~self.labels].any()
        pull = -gradient if self.grows else gradient
        if self.difference is not None:
            pull, self.error = gradient * self.difference, self.difference.square().mean()
        elif self.likelihoods is not None and self.of_nothing is not None:
            some = gradient != 0
            self.error = -(gradient * self.likelihoods)[some].sum()
            self.of_nothing = self.of_nothing * gradient.sum()
        return (pull <= 0).all() & (pull < 0).any()


def are_learnt(terms: Iterable[ErrorTerm]) -> bool:
    """Whether errors lie below those of answers that know nothing."""
    known = [(t.error, t.of_nothing) for t in terms if t.error is not None and t.of_nothing is not None]
    return bool(known) and bool(sum(error for error, _ in known) < UNLEARNT * sum(other for _, other in known))


@dataclass(eq=False)
class Path:
    """What stands between a loss and a node."""

    summed: bool = False
    """Whether it is one of several terms."""
    plain: bool = True
    """Whether no number for each sample does, which may be the return of an episode, or its cost."""
    nested: bool = False
    """Whether such a number, and below it a function of the whole error, as the logarithm of PSNR, does."""
    even: bool = False
    """Whether a function that is as large for what is below zero does."""
    chosen: bool = False
    """Whether one class of each sample was chosen."""
    divisor: Tensor | None = None
    """The number that a sum is divided by."""
    part: Any = None
    """Which features are taken of what is below."""


def error_terms(root: Any, differences: Mapping[Any, Tensor]) -> tuple[list[ErrorTerm], set[Head]]:
    """The errors of a loss, and the last layers of its other terms.

    differences: node -> what it has returned.
    """
    found: list[ErrorTerm] = []
    others: set[Head] = set()
    stack: list[tuple[Any, Path]] = [(root, Path())]
    seen = {(root, 0)}
    while stack and len(seen) < MAX_NODES:
        node, path = stack.pop()
        term = error_at(node, path, differences)
        found += [] if term is None else [term]
        below = steps(node, path) if term is None else []
        if below is None:
            others |= heads_below(node, path.part)
        for each, way in below or ():
            number = next((i for known, i in node.next_functions if known is each), 0)
            if (each, number) not in seen:
                seen.add((each, number))
                part = part_of(each, number) if way.part is None else way.part
                stack.append((each, replace(way, part=part)))
    return found, others


def error_at(node: Any, path: Path, differences: Mapping[Any, Tensor]) -> ErrorTerm | None:
    """The error that a node is, if a gradient at it tells which way it goes."""
    name, inputs = node.name(), inputs_of(node)
    if name == "MulBackward0" and (term := overlap_at(node, path)) is not None:
        return term
    if not path.plain and not path.nested:
        return None
    if name in ERRORS and len(inputs) == 1 and not path.chosen:
        return None if name in DISTANCES and is_bounded(node) else ErrorTerm(node, heads_below(node))
    difference = differences.get(node)
    if name in ("SubBackward0", "RsubBackward1") and len(inputs) == 1 and path.even and difference is not None:
        return None if is_bounded(node) else ErrorTerm(node, heads_below(node), difference=difference)
    if not path.plain:
        return None
    normed = name == "SubBackward0" and [each.name() for each in inputs][1:] == ["LogsumexpBackward0"]
    if (
        normed
        or name in ("LogSoftmaxBackward0", "LogSigmoidBackward0")
        or (name == "LogBackward0" and is_chance(node, path))
    ):
        values = differences.get(node) if normed else logarithms(node)
        return None if values is None else ErrorTerm(node, heads_below(node), grows=True, likelihoods=values)
    if name == "SumBackward1" and not path.even and not path.summed and is_cosine(inputs[0]):
        return ErrorTerm(node, heads_below(node), grows=True)
    return None


def is_cosine(product: Any) -> bool:
    """Whether it is summed up to the cosine between an output and data."""
    data = factor(product)
    if data is None or not is_normalised(inputs_of(product)[0]) or not data.is_floating_point():
        return False
    return bool(((data.float().square().sum(-1) - 1).abs() < SAME).all())


def overlap_at(product: Any, path: Path) -> ErrorTerm | None:
    """The sum of chances times labels, which is to be large beside the chances of what has none, as in a Dice loss."""
    labels = factor(product)
    made = down(inputs_of(product)[0], TURNS) if labels is not None else None
    if labels is None or made is None or not made.name().startswith(("SigmoidBackward", "SoftmaxBackward")):
        return None
    if not bool(((labels == 0) | (labels == 1)).all() & (labels == 0).any() & (labels == 1).any()):
        return None
    chances = inputs_of(product)[0]
    return ErrorTerm(chances, heads_below(chances), labels=labels.detach() == 1)


def is_chance(logarithm: Any, path: Path) -> bool:
    """Whether a logarithm is one of a probability: of a sigmoid, or of a class that was chosen from a softmax."""
    below = down(inputs_of(logarithm)[0], EPSILONS)
    chosen = path.chosen or below.name() in CHOICES
    below = down(below, (*TURNS, *EPSILONS, "Rsub"))
    return below is not None and below.name().startswith(("SoftmaxBackward", "SigmoidBackward")[1 - chosen :])


def steps(node: Any, path: Path) -> list[tuple[Any, Path]] | None:
    """The nodes below that an error may be behind, each with what stands between; None where none is."""
    name, inputs = node.name(), inputs_of(node)
    if name in SUMS:
        sides = sides_of_two(node) or inputs
        return [(each, replace(path, summed=path.summed or len(inputs) > 1)) for each in sides]
    if name in ("DivBackward0", "MulBackward0"):
        return factors(node, inputs, path)
    if name in PASSED and inputs:
        even = path.even or (name in EVEN and (name != "PowBackward0" or node._saved_exponent % 2 == 0))
        way = replace(path, even=even, chosen=path.chosen or name in CHOICES, nested=path.nested or name in NESTED)
        return [(each, way) for each in inputs]
    return None


def factors(node: Any, inputs: list[Any], path: Path) -> list[tuple[Any, Path]] | None:
    """The same of a product or quotient.

    A number that multiplies it may be the return of an episode, or its cost, whose sign decides: it is passed only
    where it is above 0 and one of several terms is multiplied, or by what picks one class of each sample, or is divided
    by its own sum.
    """
    name = node.name()
    if len(inputs) == 2:
        one, two = inputs
        if name == "DivBackward0" or (one is two) or is_positive(two):
            return [(one, replace(path, even=path.even or one is two))]
        return [(two, path)] if is_positive(one) else None
    if not inputs or is_packed(node):
        return None
    constant, _ = split(node, name, node.next_functions)
    if constant is not None and constant.device.type == "cpu":
        value = constant.item()
        plain = path.plain and value > 0 and (name == "DivBackward0" or path.summed or value in (0.5, 1))
        divisor = constant if name == "DivBackward0" else path.divisor
        return [(inputs[0], replace(path, plain=plain, divisor=divisor))]
    constant = node._saved_other if node.next_functions[0][0] is not None else node._saved_self
    if constant is None:
        return None
    if name == "DivBackward0":
        return [(inputs[0], path)] if bool((constant > 0).all()) else None
    if picks(constant):
        return [(inputs[0], replace(path, chosen=True))]
    own = path.divisor is not None and bool((constant >= 0).all() & (constant.sum() == path.divisor))
    return [(inputs[0], path if own else replace(path, plain=False))]


def is_positive(node: Any) -> bool:
    made = down(node, TURNS)
    return made is not None and bool(made.name().startswith(POSITIVE))


def is_bounded(node: Any) -> bool:
    """Whether an error is one of outputs that have bounds."""
    return any(down(each, TURNS).name().startswith(BOUNDED) for each in inputs_of(node))


def picks(constant: Tensor) -> bool:
    """Whether it picks one class of each sample, or shares of them."""
    if constant.dim() < 2 or constant.shape[-1] < 2:
        return False
    return bool((constant >= 0).all() & ((constant.sum(-1) - 1).abs() < SAME).all())


def sides_of_two(node: Any) -> list[Any]:
    """The logarithms of t log(p) + (1 - t) log(1 - p); nothing of other sums."""
    products = inputs_of(node)
    constants = [factor(each) for each in products]
    if node.name() != "AddBackward0" or len(products) != 2:
        return []
    one, two = constants
    if one is None or two is None:
        return []
    labels = one.shape == two.shape and bool(((one >= 0) & (two >= 0) & ((one + two - 1).abs() < SAME)).all())
    return [inputs_of(each)[0] for each in products] if labels else []


def factor(node: Any) -> Tensor | None:
    """The constant of a product, one for each element; None of others."""
    if node.name() != "MulBackward0" or len(inputs_of(node)) != 1 or is_packed(node):
        return None
    constant: Tensor | None = node._saved_other if node.next_functions[0][0] is not None else node._saved_self
    return constant if constant is not None and constant.numel() > 1 else None


def turning_site(root: Any, error: Any, turns: set[Any]) -> CallSite | None:
    """The line that turns the sign of a term; that of the loss where none does, or one in a function that knows nothing
    of the loss. turns: nodes of the user's own minus signs."""
    stack: list[tuple[Any, CallSite | None]] = [(root, None)]
    seen = {root}
    while stack and len(seen) < MAX_NODES:
        node, site = stack.pop()
        if node is error:
            break
        minus = {"SubBackward0": 1, "RsubBackward1": 0, "NegBackward0": 0}.get(node.name()) if node in turns else None
        for i, (each, _) in enumerate(node.next_functions):
            if each is not None and each not in seen:
                seen.add(each)
                stack.append((each, site_of(node) if i == minus else site))
    else:
        site = None
    whole = site_of(root)
    return site if site is not None and whole is not None and site[0] is whole[0] else whole
