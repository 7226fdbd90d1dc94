"""Losses that are an error with its sign reversed: it is made as large as can be, and there is no bound."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from torch import Tensor

from gradlab.watch.call_site import CallSite
from gradlab.watch.events import Violation
from gradlab.watch.followed_update import FOLLOWED, Reader
from gradlab.watch.graphs.advantages import inputs_of
from gradlab.watch.graphs.loss_graph import IDENTITIES, MAX_NODES, MAX_TERMS, PRODUCTS, REGRESSIONS, is_packed, split
from gradlab.watch.graphs.networks_between import weight_of
from gradlab.watch.graphs.node_lines import site_of
from gradlab.watch.readers.class_losses import EPSILONS, TURNS, down
from gradlab.watch.readers.learnt_errors import is_learnt, is_square
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

DISTANCES = {*REGRESSIONS, "L1LossBackward0"}
BOUNDED = ("TanhBackward", "SigmoidBackward", "SoftmaxBackward")
ERRORS = DISTANCES | {"NllLossBackward0", "NllLoss2DBackward0", "BinaryCrossEntropyBackward0"}
ERRORS |= {"BinaryCrossEntropyWithLogitsBackward0", "CtcLossBackward0"}
PASSED = IDENTITIES | {"MeanBackward0", "SumBackward0", "MeanBackward1", "SumBackward1", "GatherBackward0"}
PASSED |= {"IndexBackward0", "SelectBackward0", "SqueezeBackward1"}
CHOICES = {"GatherBackward0", "IndexBackward0", "SelectBackward0"}


class ReversedLosses(Reader):
    """Reads the graphs of all losses of the second to sixth update: each must be such an error alone, of a layer that
    is trained.

    As a term beside others of the same layer, or of a network that is trained by another loss, it may have to grow. So
    it may where it is small at the beginning: a trained network is to forget.
    """

    def __init__(self) -> None:
        self.site: CallSite | None = None
        """Line of the first of them; lines are known in the first update alone."""
        self.forget()

    def forget(self) -> None:
        self.losses: list[bool] = []
        """Whether each is one."""
        self.squares: dict[Any, float] = {}
        """Node of a difference between an output and data -> mean square of the data."""

    @property
    def is_pending(self) -> bool:
        """An episode that is lost may turn the sign of one update, and of another one."""
        return self.site is not None

    def begin(self, tracker: OptimizerTracker, without: list[Tensor], flat: list[Tensor]) -> bool:
        self.forget()
        self.tracker = tracker
        if tracker.attempts > FOLLOWED[1]:
            self.site = None
        return tracker.attempts == FOLLOWED[0] or self.is_pending

    def follow(self, name: str, func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        if name in ("sub", "__sub__", "__rsub__") and isinstance(result, Tensor) and result.requires_grad:
            known = [each for each in args[:2] if isinstance(each, Tensor) and not each.requires_grad]
            if len(known) == 1 and known[0].shape == result.shape and result.dim():
                self.squares[result.grad_fn] = known[0].float().square().mean().item()

    def at_backward(self, roots: list[Tensor]) -> None:
        for root in roots:
            errors = reversed_errors(root.grad_fn, self.squares)
            reverse = any(last_weights(each) & self.tracker.ids for each in errors)
            first = self.tracker.attempts == FOLLOWED[0]
            value = root.item() if root.grad_fn is not None and is_mean_of(root.grad_fn, errors) else None
            self.losses.append(reverse and not (first and any(is_learnt(each, value, self.squares) for each in errors)))
            if reverse and first:
                several = len(terms_of(root.grad_fn)) > 1
                self.site = turning_site(root.grad_fn, errors[0]) if several else site_of(root.grad_fn)

    def end(self) -> Iterator[Violation]:
        found = bool(self.losses) and all(self.losses) and self.tracker.descends
        if found and self.tracker.attempts == FOLLOWED[1]:
            yield "loss-reversed", self.site, ""
        self.site = self.site if found and self.tracker.attempts < FOLLOWED[1] else None
        self.forget()


def reversed_errors(root: Any, squares: Collection[Any] = ()) -> list[Any]:
    """The nodes of errors that are made as large as can be: the loss itself, or terms of it whose last layers no other
    term trains, as where a bracket takes in a 1 - too much. squares: differences between an output and data."""
    if root is None:
        return []
    if is_log_likelihood(root):
        return [root]
    terms = terms_of(root)
    errors = [error_of(*term, len(terms) > 1, squares) for term in terms]
    if len(terms) == 1 or not any(errors):
        return [each for each in errors if each is not None]
    own = [last_weights(node) for node, _ in terms]
    others = [set[int]().union(*own[:i], *own[i + 1 :]) for i in range(len(own))]
    return [e for e, mine, rest in zip(errors, own, others, strict=True) if e is not None and not mine & rest]


def turning_site(root: Any, error: Any) -> CallSite | None:
    """The line that turns the sign of a term; that of the term where no line does."""
    stack, seen = [(root, site_of(error))], {root}
    while stack and len(seen) < MAX_NODES:
        node, site = stack.pop()
        if node is error:
            return site
        minus = {"SubBackward0": 1, "RsubBackward1": 0, "NegBackward0": 0}.get(node.name())
        for i, (each, _) in enumerate(node.next_functions):
            if each is not None and each not in seen:
                seen.add(each)
                stack.append((each, site_of(node) if i == minus else site))
    return site_of(error)


def is_mean_of(root: Any, errors: list[Any]) -> bool:
    """Whether a loss is the mean of an error's negative, and nothing else."""
    return len(errors) == 1 and root.name() == "MeanBackward0" and inputs_of(root) == errors


def terms_of(root: Any) -> list[tuple[Any, int]]:
    """Those of a sum, with their signs."""
    found: list[tuple[Any, int]] = []
    stack = [(root, 1)]
    while stack and len(found) < MAX_TERMS:
        node, sign = stack.pop()
        inputs = [each for each, _ in node.next_functions]
        if node.name() in ("AddBackward0", "SubBackward0") and None not in inputs and len(inputs) == 2:
            stack += [(inputs[0], sign), (inputs[1], -sign if node.name() == "SubBackward0" else sign)]
        elif node.name().startswith("RsubBackward") and len(inputs_of(node)) == 1:
            stack.append((inputs_of(node)[0], -sign))
        elif node.name() in ("AddBackward0", "SubBackward0") and len(inputs_of(node)) == 1:
            stack.append(
                (inputs_of(node)[0], sign if inputs[0] is not None or node.name() == "AddBackward0" else -sign)
            )
        else:
            found.append((node, sign))
    return found


def error_of(node: Any, sign: int, weighed: bool, squares: Collection[Any]) -> Any:
    """The node of an error whose sign is reversed, or of logarithms that are made small; None of other losses.

    A number that multiplies it may be the return of an episode, or its cost, whose sign decides: nothing is said, but
    of ones and zeros that pick one class of each sample. weighed: terms may be multiplied by a number above 0.
    """
    chosen = False
    for _ in range(MAX_NODES):
        if node is None:
            return None
        name, inputs = node.name(), inputs_of(node)
        if is_square(node) and inputs[0] in squares:
            return node if sign < 0 and not is_bounded(inputs[0]) else None
        if name in ERRORS:
            return node if sign < 0 and not (name in DISTANCES and is_bounded(node)) else None
        if name == "LogSoftmaxBackward0" or [each.name() for each in inputs][1:] == ["LogsumexpBackward0"]:
            return node if sign > 0 else None
        if name == "LogBackward0":
            below = down(inputs[0], EPSILONS)
            chosen = chosen or below.name() in CHOICES
            return (
                node if sign > 0 and chosen and down(below, (*TURNS, *EPSILONS)).name() == "SoftmaxBackward0" else None
            )
        chosen = chosen or name in CHOICES or picks(node)
        if name == "NegBackward0":
            sign, node = -sign, inputs[0]
        elif name in ("DivBackward0", "MulBackward0") and not picks(node):
            constant, node = split(node, name, node.next_functions)
            if constant is None or constant.device.type != "cpu" or not constant.item() > 0:
                return None
            if name == "MulBackward0" and not weighed:
                return None
        elif (name in PASSED and len(inputs) == 1) or picks(node):
            node = inputs[0]
        else:
            return None
    return None


def is_bounded(node: Any) -> bool:
    """Whether an error is one of outputs that have bounds."""
    return any(down(each, TURNS).name().startswith(BOUNDED) for each in inputs_of(node))


def factor(node: Any) -> Any:
    """The constant of a product, one for each element; None of others."""
    if node.name() != "MulBackward0" or len(inputs_of(node)) != 1 or is_packed(node):
        return None
    constant = node._saved_other if node.next_functions[0][0] is not None else node._saved_self
    return constant if constant is not None and constant.numel() > 1 else None


def picks(node: Any) -> bool:
    """Whether it multiplies by ones and zeros that pick one class of each sample."""
    constant = factor(node)
    if constant is None or constant.dim() < 2 or constant.shape[-1] < 2:
        return False
    return bool(((constant == 0) | (constant == 1)).all() & (constant.sum(-1) == 1).all())


def is_log_likelihood(root: Any) -> bool:
    """Whether it is t log(p) + (1 - t) log(1 - p), which is to be large."""
    node, sign = root, 1
    while node is not None and (node.name() in PASSED or node.name() == "NegBackward0") and len(inputs_of(node)) == 1:
        node, sign = inputs_of(node)[0], -sign if node.name() == "NegBackward0" else sign
    sides = inputs_of(node) if node is not None and node.name() == "AddBackward0" else []
    constants = [factor(each) for each in sides]
    if sign < 0 or len(sides) != 2 or any(each is None for each in constants):
        return False
    one, two = constants
    labels = one.shape == two.shape and bool(((one == 0) | (one == 1)).all() & (one + two == 1).all())
    return labels and all(inputs_of(each)[0].name() == "LogBackward0" for each in sides)


def last_weights(node: Any) -> set[int]:
    """ids of the weights of the products nearest below."""
    queue, seen, found = [node], {node}, set[int]()
    while queue and len(seen) < MAX_NODES:
        node = queue.pop()
        inputs = inputs_of(node)
        own = {id(w) for each in inputs if (w := weight_of(each)) is not None} if node.name() in PRODUCTS else set()
        found |= own
        if own:
            continue  # a product of two outputs compares them
        queue += [each for each in inputs if each not in seen]
        seen |= set(inputs)
    return found
