"""The terms of a loss beside each other: a mean beside a sum, and an entropy that is to fall beside a policy's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gradlab.watch.call_site import CallSite, format_site
from gradlab.watch.events import Violation
from gradlab.watch.followed_update import Reader
from gradlab.watch.graphs.advantages import LINEAR, inputs_of, terms_of
from gradlab.watch.graphs.comparisons import ratio_of_itself
from gradlab.watch.graphs.loss_graph import IDENTITIES, MAX_NODES, is_of_activations, is_packed, reduction_of, split
from gradlab.watch.graphs.node_lines import site_of
from gradlab.watch.readers.divergences import averaged_over, divergence_weight, summed_over, use_of_latents
from gradlab.watch.readers.entropies import is_negative, penalised
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker, listed

MANY = 256
"""Elements of a mean beside a sum at least."""
SAMPLES = 32
"""The same, if it is one of the likelihoods of classes."""
FEATURES = 4
"""Elements of each sample at least, if a mean is one over all of them, and no mean over samples alone."""
PLAIN = (0.5, 1.0, 2.0)
"""Factors of terms whose weight was not chosen: any other below 1 may be one over the samples."""


@dataclass(frozen=True)
class Reduced:
    """A mean or sum of elements of each sample."""

    kind: str
    shape: tuple[int, ...]
    factor: float
    site: CallSite | None
    """Of the sum of terms that it is in."""
    own: CallSite | None
    """Where it is reduced."""
    of_classes: bool
    """Of the likelihoods of classes: one number of each sample's row."""


class LossTerms(Reader):
    """Reads the graphs of the losses of one update, whose lines are known."""

    def __init__(self) -> None:
        self.found: list[Violation] = []

    def begin(self, tracker: OptimizerTracker, without: list[Tensor], flat: list[Tensor]) -> bool:
        self.tracker, self.params, self.names, self.num_losses = tracker, tracker.params, tracker.names, 0
        return tracker.attempts == 1

    def at_backward(self, roots: list[Tensor]) -> None:
        if len(roots) != 1 or roots[0].grad_fn is None:
            return
        try:
            found = list(terms(roots[0].grad_fn))
            self.found += mixed([each for term in found for each in reduced(*term)]) or divergent(found)
            if (ratio := ratio_of_itself(roots[0].grad_fn)) is not None:
                names = [n for p, n in zip(self.params, self.names, strict=True) if id(p) in ratio[1]]
                detail = f"both sides of a ratio come of {listed(names)}: it is 1, and its gradient is zero"
                self.found.append(("target-not-detached", ratio[0], detail))
            if (away := divergence_made_large(roots[0].grad_fn)) is not None:
                site = turned_at(roots[0].grad_fn) or site_of(away)
                self.found.append(("loss-reversed", site, "a divergence of Gaussians is to be small"))
            self.found += divided_again(roots[0].grad_fn)
            self.num_losses += 1
            site, has_values = penalised(roots[0].grad_fn)
            if site is not None and (has_values or terms_of(roots)[2]):
                self.found.append(("entropy-penalised", site, ""))
        except (RuntimeError, AttributeError):  # what a node has saved is freed
            return

    def end(self) -> Iterator[Violation]:
        found, self.found = self.found, []
        unknown = set() if self.num_losses == 1 else {"loss-divided-twice"}
        unknown |= set() if self.tracker.descends else {"loss-reversed", "entropy-penalised"}
        yield from (each for each in found if each[0] not in unknown)


def terms(root: Any) -> Iterator[tuple[Any, float, CallSite | None]]:
    """Those of a sum, with plain factors, and the line of the sum; a product with another factor is one itself."""
    stack: list[tuple[Any, float, CallSite | None]] = [(root, 1.0, None)]
    for _ in range(MAX_NODES):
        if not stack:
            return
        node, factor, site = stack.pop()
        name, inputs = node.name(), inputs_of(node)
        if name in ("AddBackward0", "SubBackward0"):
            stack += [(each, factor, site_of(node) if len(inputs) > 1 else site) for each in inputs]
        elif name in IDENTITIES or name == "NegBackward0":
            stack += [(each, factor, site) for each in inputs]
        elif name in ("MulBackward0", "DivBackward0"):
            below, value = plain(node)
            if below is None:
                yield node, factor, site
            else:
                stack.append((below, factor * value, site))
        else:
            yield node, factor, site


def plain(node: Any) -> tuple[Any, float]:
    """What a product or quotient is of, and its factor; None of another factor."""
    constant, below = split(node, node.name(), node.next_functions)
    if constant is None or constant.device.type != "cpu" or not (value := abs(constant.item())):
        return None, 0.0
    factor = value ** (1 if node.name()[0] == "M" else -1)
    return (below, factor) if value in PLAIN or factor > 1 else (None, 0.0)


def reduced(node: Any, factor: float, site: CallSite | None) -> Iterator[Reduced]:
    kind = reduction_of(node, node.name())
    for each in inputs_of(node):
        if each.name() in ("MulBackward0", "DivBackward0") and len(inputs_of(each)) == 1 and plain(each)[0] is None:
            return
    if kind in ("mean", "sum") and not is_packed(node) and is_of_activations(node):
        given = getattr(node, "_saved_self", None)
        shape = getattr(node, "_saved_self_sym_sizes", None) if given is None else given.shape
        if shape and node.name().endswith("Backward0"):
            of_classes = node.name().startswith("Nll")
            yield Reduced(kind, tuple(shape[:1] if of_classes else shape), factor, site, site_of(node), of_classes)


def mixed(found: list[Reduced]) -> list[Violation]:
    """A mean over all elements of the batch, or of classes, beside a sum over those of the same samples."""
    for mean in [each for each in found if each.kind == "mean"]:
        num = math.prod(mean.shape)
        sums = [each for each in found if each.kind == "sum" and each.shape[0] == mean.shape[0]]
        sums = [each for each in sums if len(each.shape) > 1 or (each.of_classes and not mean.of_classes)]
        sums = [each for each in sums if each.factor >= min(PLAIN) * mean.factor]
        of_classes = mean.of_classes or any(each.of_classes for each in sums)
        enough = SAMPLES if of_classes else max(MANY, FEATURES * mean.shape[0])
        if sums and mean.shape[0] > 2 and num >= enough:
            often = num * sums[0].factor / mean.factor
            detail = f"a mean over {mean.shape} beside a sum over {sums[0].shape}, which weighs {often:g} times as much"
            other, changed = (mean, sums[0]) if of_classes else (sums[0], mean)  # of classes a mean is usual
            detail += f"; they are added at {format_site(mean.site)}, the other is made at {format_site(other.own)}"
            return [("mixed-reductions", changed.own or sums[0].site, detail)]
    return []


def divergent(found: list[tuple[Any, float, CallSite | None]]) -> list[Violation]:
    """A mean over all elements of the batch beside a mean over samples of divergences that are summed over each, and
    nothing else that the latents would be of use to."""
    for node, factor, site in found:
        samples = summed_over(node)
        if samples is None or samples < 3:
            continue
        others = [f for each, f, _ in found if averaged_over(each) == samples]
        for other in [f for f in others if factor >= min(PLAIN) * f]:  # else the weight may hold their number
            detail = f"a mean over {samples} samples beside a divergence that is summed over them, which weighs "
            detail += f"{samples * factor / other:g} times as much; they are added at {format_site(site)}"
            return [("mixed-reductions", site_of(node) or site, detail)]
    away = [(node, factor * weight, site) for node, factor, site in found if (weight := divergence_weight(node))]
    errors = [(node, factor, site) for node, factor, site in found if not divergence_weight(node)]
    for node, weight, site in away if errors else ():
        means = [each for term in errors for each in reduced(*term) if each.kind == "mean"]
        shapes = [each.shape for each in means]
        alike = [len(shape) > 1 and shape[0] == samples_of(node) for shape in shapes]
        if len(alike) < len(errors) or not all(alike):
            continue
        if weight >= sum(factor * use_of_latents(error) for error, factor, _ in errors):
            often = math.prod(shapes[0][1:]) * weight / errors[0][1]
            detail = (
                f"a mean over {shapes[0]} beside a divergence that is summed over each sample, and then a mean: an "
            )
            detail += f"element of it weighs {often:g} times as much, and latents cost more than they can save"
            detail += f"; they are added at {format_site(site or errors[0][2])}"
            return [("mixed-reductions", means[0].own or site, detail)]
    return []


def samples_of(node: Any) -> int | None:
    """How many numbers a mean is of."""
    sizes = getattr(node, "_saved_self_sym_sizes", ())
    return math.prod(sizes) if sizes else None


def divergence_made_large(root: Any) -> Any:
    """The exponential in a divergence of Gaussians whose sign is reversed; None if there is none.

    That is exp(s) - s + m^2 for each element, with any factor above 0.
    """
    stack, signs = [(root, 1)], {root: 1}
    while stack and len(signs) < MAX_NODES:
        node, sign = stack.pop()
        inputs = [each for each, _ in node.next_functions]
        if node.name() not in LINEAR or (node.name() in ("MulBackward0", "DivBackward0") and len(inputs_of(node)) > 1):
            continue
        if node.name() == "NegBackward0" or (node.name() in ("MulBackward0", "DivBackward0") and is_negative(node)):
            sign = -sign
        for i, each in enumerate(inputs):
            if each is not None and each not in signs:
                minus = (node.name() == "SubBackward0" and i == 1) or (node.name().startswith("Rsub") and i == 0)
                signs[each] = -sign if minus else sign
                stack.append((each, signs[each]))
    squares = any(sign < 0 and node.name() == "PowBackward0" for node, sign in signs.items())
    for node, sign in signs.items():
        if squares and sign < 0 and node.name() == "ExpBackward0" and signs.get(inputs_of(node)[0]) == 1:
            return node
    return None


def turned_at(root: Any) -> CallSite | None:
    """The line at which the sign of a whole sum of terms is turned."""
    node = root
    while node is not None and len(inputs_of(node)) == 1:
        if node.name() == "NegBackward0":
            return site_of(node)
        node = inputs_of(node)[0]
    return None


def divided_again(root: Any) -> list[Violation]:
    """A mean over samples that is divided by their number once more."""
    node, divisors = root, []
    while node.name() in IDENTITIES | {"DivBackward0", "MulBackward0"} and len(inputs_of(node)) == 1:
        if node.name() in ("DivBackward0", "MulBackward0"):
            constant, below = split(node, node.name(), node.next_functions)
            if constant is None or constant.device.type != "cpu" or not constant.item() > 0:
                return []
            divisors.append((constant.item() if node.name()[0] == "D" else 1 / constant.item(), site_of(node)))
            node = below
        else:
            node = inputs_of(node)[0]
    kind = reduction_of(node, node.name())
    if kind not in ("mean", "sum") or is_packed(node):
        return []
    given = getattr(node, "_saved_self", None)
    shape = getattr(node, "_saved_self_sym_sizes", None) if given is None else given.shape
    if not shape:
        return []
    if kind == "sum" and not any(math.isclose(each, counted(node, shape), rel_tol=1e-6) for each, _ in divisors):
        return []
    for divisor, site in divisors:
        if shape[0] > 2 and math.isclose(divisor, shape[0], rel_tol=1e-6) and (kind == "mean" or len(shape) > 1):
            return [("loss-divided-twice", site, f"a mean over {shape[0]} samples, divided by {shape[0]} again")]
    return []


def counted(node: Any, shape: Sequence[int]) -> float:
    """How many elements a sum is of that a mask has not made zero."""
    below = inputs_of(node)
    if below and below[0].name() == "MulBackward0" and len(inputs_of(below[0])) == 1 and not is_packed(below[0]):
        masks = [below[0]._saved_other, below[0]._saved_self]
        given = [mask for mask in masks if mask is not None and mask.numel() > 1]
        if given and given[0].device.type == "cpu":
            return float(given[0].detach().expand(shape).count_nonzero())
    return float(math.prod(shape))
