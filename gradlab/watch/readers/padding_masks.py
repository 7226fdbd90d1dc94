"""Masks that hide the tokens, and leave the padding: of attention, of pooling and of losses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gradlab.watch.call_site import CallSite, call_site, format_site
from gradlab.watch.events import Violation
from gradlab.watch.followed_update import Reader, argument
from gradlab.watch.graphs.advantages import LINEAR, inputs_of
from gradlab.watch.graphs.loss_graph import MAX_TERMS
from gradlab.watch.readers.sample_axes import ATTENTION
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

SCALED = "scaled_dot_product_attention"
HIDDEN = -100.0
"""What is added to hide an entry, or less."""
COMPARISONS = {"__eq__", "__ne__", "__lt__", "__gt__", "__le__", "__ge__", "eq", "ne", "lt", "gt", "le", "ge"}
COMPARISONS |= {"__invert__", "logical_not", "bitwise_not", "bool"}
FILLS = {"masked_fill", "masked_fill_"}
PRODUCTS = {"mul", "__mul__", "__rmul__", "mul_", "__imul__"}
MULTIPLIED = "it is multiplied at"
ENDS = 2
"""Different lengths at least, where padding is known by its place alone."""


@dataclass
class Use:
    """Of a mask."""

    site: CallSite | None
    visible: Tensor
    """(samples, steps), which entries have a part in what follows."""
    what: str
    node: Any = None
    """Of what it was multiplied with, until the backward pass."""


class PaddingMasks(Reader):
    """Compares the masks of one update with where tokens are padded."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.tokens: list[tuple[Tensor, int | None]] = []
        """Indices of two dimensions that were embedded, or are targets, and the index of padding."""
        self.made: list[tuple[CallSite | None, Tensor]] = []
        """Comparisons, and what they are turned to, with their lines."""
        self.uses: list[Use] = []

    def begin(self, tracker: OptimizerTracker, without: list[Tensor], flat: list[Tensor]) -> bool:
        self.forget()
        return tracker.attempts == 1

    def follow(self, name: str, func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        if isinstance(result, Tensor) and result.dtype is torch.bool and result.dim() == 2 and name in COMPARISONS:
            self.made.append((call_site(), result))
        elif name == "embedding" and isinstance(args[0], Tensor) and args[0].dim() == 2 and min(args[0].shape) > 1:
            self.tokens.append((args[0], argument(args, kwargs, 2, "padding_idx")))
        elif not self.tokens:
            return
        elif name in ("cross_entropy", "nll_loss"):
            target = argument(args, kwargs, 1, "target")
            if isinstance(target, Tensor) and not target.is_floating_point():
                self.tokens.append((target, self.tokens[-1][1]))
        elif name == ATTENTION:
            self.note(kwargs.get("key_padding_mask"), "attention is given it at", hides=True)
        elif name == SCALED:
            self.note(argument(args, kwargs, 3, "attn_mask"), "attention is given it at")
        elif name in FILLS and len(args) > 2 and is_hidden(args[2]):
            self.note(args[1], "it hides entries at", hides=True)
        elif name == "where" and len(args) > 2 and is_hidden(args[2]):
            self.note(args[0], "it hides entries at")
        elif name == "__getitem__" and isinstance(args[1], Tensor) and args[1].dtype is torch.bool:
            self.note(args[1] if result.requires_grad else None, "it picks entries at")
        elif name in PRODUCTS and isinstance(result, Tensor) and result.requires_grad:
            constants = [each for each in args[:2] if isinstance(each, Tensor) and not each.requires_grad]
            if constants and sizes(constants[0]) and bool(((constants[0] == 0) | (constants[0] == 1)).all()):
                self.note(constants[0].bool(), MULTIPLIED, node=result.grad_fn)

    def note(self, mask: Any, what: str, hides: bool = False, node: Any = None) -> None:
        """A call is given a mask. hides: whether its True hide an entry; those of numbers add to it."""
        if isinstance(mask, Tensor) and len(shape := sizes(mask)) in (1, 2):
            mask = mask.detach().reshape(shape)
            visible = mask > HIDDEN if mask.is_floating_point() else mask.bool() ^ hides
            self.uses.append(Use(call_site(), visible, what, node))

    def at_backward(self, roots: list[Tensor]) -> None:
        """What is subtracted from a loss is left out of it."""
        nodes = [use.node for use in self.uses if use.node is not None]
        signs = [sign for root in roots if nodes and root.grad_fn is not None for sign in terms_of(root.grad_fn)]
        negative = {node for node, sign in signs if sign < 0}
        self.uses = [replace(use, node=None) for use in self.uses if use.node is None or use.node not in negative]

    def end(self) -> Iterator[Violation]:
        paddings = [padding for ids, index in self.tokens for padding in padded(ids, index)] if self.uses else []
        wrong = [use for use in self.uses if any(same(use.visible, each) for each in paddings)]
        right = [use for use in self.uses if any(same(~use.visible, each) for each in paddings)]
        blended = {(use.what, use.site) for use in right if use.what == MULTIPLIED}
        for use in [use for use in wrong if (use.what, use.site) not in blended][:1]:
            made = [site for site, each in self.made if same(each, use.visible) or same(each, ~use.visible)]
            elsewhere = any(same(use.visible, ~each.visible) for each in right)
            at_once = not made or elsewhere or made[-1] is None
            yield (
                "padding-mask-inverted",
                use.site if at_once else made[-1],
                "" if at_once else f"{use.what} {format_site(use.site)}",
            )
        self.forget()


def terms_of(root: Any) -> Iterator[tuple[Any, int]]:
    """The parts of sums and means in a loss, with their signs."""
    stack = [(root, 1)]
    for _ in range(MAX_TERMS):
        if not stack:
            return
        node, sign = stack.pop()
        yield node, sign
        name = node.name()
        if name in LINEAR and not (name == "MulBackward0" and len(inputs_of(node)) > 1):
            minus = {"SubBackward0": 1, "RsubBackward1": 0, "NegBackward0": 0}.get(name)
            inputs = enumerate(each for each, _ in node.next_functions)
            stack += [(each, -sign if i == minus else sign) for i, each in inputs if each is not None]


def sizes(tensor: Tensor) -> list[int]:
    return [size for size in tensor.shape if size > 1]


def is_hidden(value: Any) -> bool:
    """Whether it hides what it is written to."""
    if isinstance(value, Tensor):
        return value.numel() == 1 and not value.requires_grad and bool(value <= HIDDEN)
    return isinstance(value, (int, float)) and value <= HIDDEN


def same(one: Tensor, two: Tensor) -> bool:
    """Whether masks are of the same entries; a loss may have them in one dimension."""
    return one.numel() == two.numel() and torch.equal(one.flatten(), two.flatten())


def padded(ids: Tensor, index: int | None) -> Iterator[Tensor]:
    """Where tokens are padding: what is known to be, or else one token that ends rows of different lengths."""
    if index is not None:
        padding = ids == index
        if bool(padding.any() & ~padding.all()):
            yield padding
    elif ids.dim() == 2:
        for last in (ids[:, -1], ids[:, 0]):
            padding = ids == last.mode()[0]
            ordered = padding if last is not ids[:, 0] else padding.flip(1)
            lengths = padding.sum(1)
            if bool((ordered[:, 1:] >= ordered[:, :-1]).all()) and len(lengths[lengths > 1].unique()) >= ENDS:
                yield padding
