"""Tokens that predictions see: their own targets; and padding that counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gradlab.watch.call_site import CallSite, call_site
from gradlab.watch.events import Violation
from gradlab.watch.followed_update import Reader, argument, tensors_in
from gradlab.watch.readers.padding_masks import HIDDEN, SCALED
from gradlab.watch.readers.sample_axes import ATTENTION, RECURRENT
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

VANISHING = 1e-30
"""Weight of an entry that is hidden so, at most."""
PADDED = 0.05
"""Share of targets that are padding, above which they have a part in what is learnt."""
FEW = 16
"""Targets from which nothing is concluded."""


class TokenMasks(Reader):
    """Reads the attention and the recurrent layers of one update. Where tokens are embedded twice, the first may be a
    source, all of which is seen."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.tokens: list[tuple[Tensor, int | None]] = []
        """Indices of two dimensions that were embedded, and the index of padding."""
        self.seen: list[tuple[CallSite | None, bool | None]] = []
        """Of each self-attention its line, and whether later steps are hidden; None where some are."""
        self.seen_now: tuple[CallSite | None, bool | None] | None = None
        """That of the latest attention, if it is known."""
        self.decoding: list[tuple[CallSite | None, bool | None]] = []
        """Those of them that attention to something else comes next after, as in a decoder."""
        self.targets: list[tuple[CallSite | None, Tensor]] = []
        self.found: list[Violation] = []
        self.steps: Any = WeakTensorKeyDictionary()
        """Tensor with an entry for each token -> whether a recurrent layer, which sees no later ones, has made it."""

    def begin(self, tracker: OptimizerTracker, without: list[Tensor], flat: list[Tensor]) -> bool:
        self.forget()
        return tracker.attempts == 1

    def follow(self, name: str, func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        if name in (ATTENTION, SCALED):
            self.follow_attention(name, args, kwargs, result)
        elif name == "embedding" and isinstance(args[0], Tensor) and args[0].dim() == 2 and min(args[0].shape) > 1:
            self.tokens.append((args[0], argument(args, kwargs, 2, "padding_idx")))
            self.steps[result] = False
        elif not self.tokens:
            return
        elif name == "softmax" and result.dim() > 2 and result.shape[-1] == result.shape[-2] and result.requires_grad:
            self.note(result.shape[-1], result.detach() < VANISHING, False)
        elif name == "conv1d" and args[0] in self.steps and sees_later(args, kwargs, result):
            self.seen.append((call_site(), False))
            self.steps[result] = False
        elif name in RECURRENT:
            if is_bidirectional(args):
                self.seen += [(call_site(), False)] if result[0].requires_grad else []
            elif args[0] in self.steps:
                self.steps[result[0]] = True
        elif name in ("cross_entropy", "nll_loss") and result.requires_grad:
            if self.steps.get(args[0]):
                self.seen.append((call_site(), True))
            target = argument(args, kwargs, 1, "target")
            if isinstance(target, Tensor) and not target.is_floating_point() and target.numel() >= FEW:
                self.targets.append((call_site(), target))
                self.note_counted(target, result, args, kwargs)
        elif isinstance(result, Tensor) and (known := [e for e in tensors_in(args) if e in self.steps]):
            n, steps = self.tokens[-1][0].shape
            first, *others = result.shape or (0,)
            if first == n * steps or (first in (n, steps) and {n, steps} <= {first, *others}):
                self.steps[result] = any(self.steps[each] for each in known)

    def follow_attention(self, name: str, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        if not self.tokens or not (result[0] if name == ATTENTION else result).requires_grad:
            return
        before, self.seen_now = self.seen_now, None
        if name == ATTENTION:
            mask = kwargs.get("attn_mask")
            causal, hidden = bool(kwargs.get("is_causal")), None if mask is None else hides(mask)
            itself, steps = args[0] is args[1], len(args[0])
        else:
            mask, causal = argument(args, kwargs, 3, "attn_mask"), bool(argument(args, kwargs, 5, "is_causal"))
            hidden = None if mask is None else ~mask if mask.dtype is torch.bool else hides(mask)
            itself, steps = args[0].shape[-2] == args[1].shape[-2], args[0].shape[-2]
        if itself:
            self.note(steps, hidden, causal)
        elif before is not None:
            self.decoding.append(before)

    def note(self, steps: int, hidden: Tensor | None, causal: bool) -> None:
        """hidden: (..., T, T), which steps are."""
        if not any(steps in each.shape for each, _ in self.tokens):
            return
        if hidden is not None and not causal:
            later = torch.ones(steps, steps, dtype=torch.bool, device=hidden.device).triu(1)
            if hidden.shape[-2:] != later.shape:
                self.seen.append((call_site(), None))
                return
            causal = bool(hidden[..., later].all())
            if not causal and bool(hidden[..., later.tril(1)].any()):
                self.seen.append((call_site(), None))
                return
        self.seen_now = (call_site(), causal)
        self.seen.append(self.seen_now)

    def note_counted(self, target: Tensor, result: Tensor, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Whether targets that are padding, by the embedding of the same tokens, have a loss."""
        tokens, padding = self.tokens[-1]
        weight, ignored = argument(args, kwargs, 2, "weight"), kwargs.get("ignore_index", -100)
        if padding is None or padding == ignored or weight is not None or shift_of(tokens, target) is None:
            return
        is_padding = target == padding
        share = is_padding.float().mean().item()
        if not result.dim() and share > PADDED and have_an_end(target, len(tokens), padding):
            detail = f"{share:.0%} of its targets are {padding}, the padding of the embedding, which it does not ignore"
            self.found.append(("loss-input", call_site(), detail))

    def end(self) -> Iterator[Violation]:
        yield from self.found[:1]
        seen = self.decoding or self.seen
        hidden = {causal for _, causal in seen}
        for site, target in self.targets[:1] if self.tokens else ():
            if True in hidden and shift_of(self.tokens[-1][0], target) == 0:
                yield "target-in-sight", site, "the target of each step is the token that it is given, and no later"
            elif not (self.decoding or len(self.tokens) == 1) or hidden != {False}:
                continue
            elif any(shift_of(ids, target) == 1 for ids, _ in self.tokens):
                yield "target-in-sight", seen[0][0], "each step is given the next token too, which is its target"
        self.forget()


def sees_later(args: list[Any], kwargs: dict[str, Any], result: Tensor) -> bool:
    """Of a convolution: whether it is padded at both ends alike, and keeps the number of steps."""
    padding = argument(args, kwargs, 4, "padding") or 0
    padded = padding == "same" or (max(padding) if isinstance(padding, (tuple, list)) else padding) != 0
    return padded and args[1].shape[-1] > 1 and result.shape[-1] == args[0].shape[-1]


def is_bidirectional(args: list[Any]) -> bool:
    """Of the arguments of a recurrent network, whether its steps are those of a tensor or packed."""
    return bool(args[8] if isinstance(args[3], list) else args[7])


def hides(mask: Tensor) -> Tensor:
    """Of a mask whose True, or negative numbers, hide an entry."""
    return mask if mask.dtype is torch.bool else mask <= HIDDEN


def have_an_end(target: Tensor, samples: int, padding: int) -> bool:
    """Whether one and the same token stands before the padding of all samples: else the padding is what ends them."""
    if target.numel() % samples:
        return False
    rows = target.reshape(samples, -1)
    first = ((rows[:, 1:] == padding) & (rows[:, :-1] != padding)).nonzero()
    last = rows[first[:, 0], first[:, 1]]
    return len(last) > 2 and bool((last == last[0]).all())


def shift_of(tokens: Tensor, target: Tensor) -> int | None:
    """By how many steps the targets are ahead of the tokens, 0 or 1; None of other targets."""
    for each in (tokens, tokens.T):
        n, steps = each.shape
        if target.numel() == n * steps and alike(each, target.reshape(n, steps)):
            return 0
        for length in (steps, steps - 1):
            if target.numel() == n * length and alike(each[:, 1:], target.reshape(n, length)[:, : steps - 1]):
                return 1
    return None


def alike(tokens: Tensor, target: Tensor) -> bool:
    """Whether all targets that count are these tokens."""
    counts = target >= 0
    differ = bool((tokens != tokens.flatten()[0]).any())
    return differ and int(counts.sum()) >= FEW and bool((tokens == target)[counts].all())
