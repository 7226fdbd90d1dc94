"""What loss functions are given: probabilities for logits or logarithms, and targets that they do not take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from gradlab.watch.call_site import CallSite, call_site
from gradlab.watch.events import Violation
from gradlab.watch.followed_update import argument
from gradlab.watch.graphs.advantages import below
from gradlab.watch.graphs.loss_graph import PRODUCTS
from gradlab.watch.graphs.node_lines import lines_of, site_of
from gradlab.watch.readers import class_losses
from gradlab.watch.readers.graph_sites import handed_site, innermost
from gradlab.watch.readers.similarities import ROUNDED, SHIFTS, VIEWS, all_of, similarities
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker, listed

SAME = 1e-3
"""Distance from 1 of a sum of probabilities."""
OUTSIDE = 0.5
"""Distance from 0 and 1 of targets of a binary cross-entropy: noise on them may be wanted."""
OTHER_DIMENSION = "the probabilities of its input sum to 1 over dimension"
"""What is said at the line of the softmax, and not at that of the loss."""


def made_by(tensor: Tensor, passed: Sequence[str] = VIEWS) -> str:
    """The name of the node that has computed a tensor's values; passed: beginnings of the names of nodes below which it
    is looked for."""
    node: Any = tensor.grad_fn
    while node is not None and node.name().startswith(tuple(f"{name}Backward" for name in passed)):
        node = next((each for each, _ in node.next_functions if each is not None), None)
    return "" if node is None else node.name()


def are_shares(values: Tensor, dim: int = 1) -> bool:
    """Whether they are probabilities along a dimension."""
    away = (values.float().sum(dim) - 1).abs()
    return all_of(values >= 0) and all_of(away < (SAME if values.dtype.itemsize > 2 else ROUNDED))


def cross_entropy(given: Tensor, target: Tensor, options: dict[str, Any]) -> str:
    if given.dim() < 2 or given.shape[1] < 2:
        return ""
    if are_shares(given):
        return "it takes logits, and its input are probabilities: they sum to 1"
    last = class_losses.down(given.grad_fn, VIEWS)
    if last is not None and last.name().startswith("ReluBackward") and not class_losses.cuts_classes(last):
        return class_losses.scrambled(given)
    return bounded(given) or class_losses.scrambled(given) or similarities(given, target)


def bounded(given: Tensor) -> str:
    """Of logits: whether the last activation leaves a part of the numbers alone."""
    if made_by(given).startswith("SigmoidBackward"):
        return "it takes logits, and its input comes from a sigmoid: it is between 0 and 1"
    if made_by(given).startswith("SoftmaxBackward"):
        return "it takes logits, and its input comes from a softmax: it is between 0 and 1"
    if made_by(given).startswith("ReluBackward"):
        return "it takes logits, and its input comes from a ReLU: it is never below 0"
    return ""


def nll_loss(given: Tensor, target: Tensor, options: dict[str, Any]) -> str:
    if given.dim() < 2:
        return ""
    return logarithms(given, 1) or class_losses.scrambled(given) or class_losses.activated_twice(given)


def bce(given: Tensor, target: Tensor, options: dict[str, Any]) -> str:
    return class_losses.activated_twice(given)


def ctc_loss(given: Tensor, target: Tensor, options: dict[str, Any]) -> str:
    blank = int(options.get("blank", 0))
    if target.dim() == 1 and bool((target == blank).any()):
        return f"its targets contain {blank}, which is the blank"
    return logarithms(given, given.dim() - 1)


def logarithms(given: Tensor, classes: int) -> str:
    """Of logarithms of probabilities. classes: the dimension over which these sum to 1."""
    if given.shape[classes] < 2:
        return ""
    if are_shares(given, classes):
        return "it takes logarithms of probabilities, and its input are the probabilities"
    shares = given.detach().float().exp()
    totals = shares.sum(classes)
    others = [i for i, size in enumerate(given.shape) if 1 < size != given.shape[classes] and i != classes]
    if not are_shares(shares, classes) and (wrong := [i for i in others if are_shares(shares, i)]):
        return f"{OTHER_DIMENSION} {wrong[0]}, and not over the classes"
    whole = [name for name in VIEWS if name not in ("Select", "Slice")]
    exact = given.dtype.itemsize > 2  # logarithms of 16 bits are further away
    if exact and made_by(given, whole).startswith("LogSoftmaxBackward") and not are_shares(shares, classes):
        return f"the probabilities of its input sum to {totals.mean().item():.3g} over the classes, and not to 1"
    if made_by(given, (*VIEWS, *SHIFTS)).startswith(("LogSoftmaxBackward", "LogBackward", "Logsumexp", "LogSigmoid")):
        return ""
    if all_of(totals > 1 + SAME):
        return (
            f"it takes logarithms of probabilities, and those of its input sum to {totals.mean().item():.3g}, not to 1"
        )
    return ""


def bce_with_logits(given: Tensor, target: Tensor, options: dict[str, Any]) -> str:
    if made_by(given).startswith(("SigmoidBackward", "SoftmaxBackward")):
        return "it takes logits, and its input are probabilities: they come from a sigmoid or softmax"
    if why := bounded(given):
        return why
    if bool(((target < -OUTSIDE) | (target > 1 + OUTSIDE)).any()):
        low, high = target.min().item(), target.max().item()
        return f"its targets are from {low:.3g} to {high:.3g}, and not from 0 to 1: it has no floor"
    return ""


def kl_div(given: Tensor, target: Tensor, options: dict[str, Any]) -> str:
    if all_of(given >= 0) and bool((given > 0).any()):
        return "it takes logarithms of probabilities, and no number of its input is negative"
    if not options.get("log_target") and bool((target < 0).any()):
        return "its targets are negative: they are logarithms, and log_target is False"
    if options.get("log_target") and all_of(target >= 0) and bool((target > 0).any()):
        return "none of its targets is negative: they are no logarithms, and log_target is True"
    return ""


def signs(*given: Any) -> str:
    """Of losses whose targets are 1 and -1."""
    *_, target, _ = given
    values = set(target.unique().tolist()) if target.numel() else set()
    return "its targets are 0 and 1; it takes -1 and 1" if values == {0, 1} else ""


def are_swapped(name: str, *given: Tensor) -> str:
    """Whether what has the gradient is the target, and what should have it are labels."""
    first = given[0]
    if (
        name in LABELLED
        and not first.requires_grad
        and first.is_floating_point()
        and set(first.unique().tolist()) == {0, 1}
    ):
        return "its arguments are swapped: the first are the labels, and the second what the network has made of them"
    return ""


KINDS: dict[str, Callable[..., str]] = {
    "cross_entropy": cross_entropy,
    "nll_loss": nll_loss,
    "ctc_loss": ctc_loss,
    "binary_cross_entropy": bce,
    "binary_cross_entropy_with_logits": bce_with_logits,
    "kl_div": kl_div,
    "cosine_embedding_loss": signs,
    "margin_ranking_loss": signs,
    "hinge_embedding_loss": signs,
    "soft_margin_loss": signs,
}
"""Functions of `torch.nn.functional`, and what says in words why their arguments are of another kind."""

NAMES = ("input", "log_probs", "target", "targets")
"""Of their arguments."""
LABELLED = {"cross_entropy", "binary_cross_entropy_with_logits"}
DIVERGENCES = {"kl_div", "cross_entropy"}
"""Losses whose target is a distribution, which another network may make."""


class LossArguments:
    """Reads the arguments of loss functions of one update, once at each line."""

    def __init__(self) -> None:
        self.read: set[tuple[str, CallSite | None]] = set()
        self.found: list[Violation] = []
        self.live: list[tuple[CallSite | None, set[int], set[int]]] = []
        """Line, ids of the weights of the prediction, and of those that the target alone depends on."""

    def begin(self, tracker: OptimizerTracker, without: list[Tensor], flat: list[Tensor]) -> bool:
        self.tracker = tracker
        return tracker.attempts == 1

    def follow(self, name: str, func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        if name not in KINDS or not isinstance(result, Tensor) or not result.requires_grad:
            return
        site = call_site()
        if (name, site) in self.read:
            return
        self.read.add((name, site))
        if name in DIVERGENCES and len(args) > 1 and args[0].requires_grad and args[1].requires_grad:
            own, (theirs, _) = below(args[0].grad_fn)[0], below(args[1].grad_fn)
            self.live.append((handed_site(result.grad_fn, [args[1].grad_fn]) or site, own, theirs - own))
        named = [kwargs[key] for key in NAMES if key in kwargs]
        given = [each.detach() if i else each for i, each in enumerate([*args, *named]) if isinstance(each, Tensor)]
        given = given if KINDS[name] is signs else given[:2]
        if len(given) > 1 and all(each.numel() and each.layout is torch.strided for each in given):
            with torch.no_grad():
                options = kwargs | ({"blank": args[4]} if name == "ctc_loss" and len(args) > 4 else {})
                options |= {"weight": argument(args, kwargs, 2, "weight")} if name == "cross_entropy" else {}
                if why := are_swapped(name, *given) or KINDS[name](*given, options):
                    maker = class_losses.down(given[0].grad_fn, VIEWS)
                    if maker is not None and why.startswith(OTHER_DIMENSION):
                        site = site_of(maker) or site
                    elif maker is not None and maker.name() not in PRODUCTS and not why.startswith("its targets"):
                        site = innermost(lines_of(result.grad_fn), [lines_of(maker)]) or site
                    self.found.append(("loss-input", site, f"{name}: {why}"))

    def at_backward(self, roots: list[Tensor]) -> None:
        pass

    def end(self) -> Iterator[Violation]:
        found, self.found = self.found, []
        yield from found
        live, self.live = self.live, []
        for site, own, theirs in live:
            mutual = any(theirs & other and own & back for _, other, back in live)
            if (trained := theirs & self.tracker.ids) and not mutual:
                yield "target-not-detached", site, listed([n for p, n in self.named() if id(p) in trained])

    def named(self) -> Iterator[tuple[Tensor, str]]:
        return zip(self.tracker.params, self.tracker.names, strict=True)
