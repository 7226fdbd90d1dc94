"""Weights that move between the backward passes of one update, as where an optimizer looks ahead."""

from __future__ import annotations

import torch

from gradlab.watch.output.update_metrics import elements

UPDATES = 6
"""The first updates, in which weights are compared: reading them waits for the device."""
ALONG = 0.3
"""Cosine between a move and the gradient from which it is along it; of noise it is near 0."""

Weights = list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
"""(weight, copy of some of its elements, copy of those of its gradient)."""


def weights_now(params: list[torch.Tensor]) -> Weights:
    """After a backward pass."""
    given = [p for p in params if p.grad is not None and not p.grad.is_sparse and p.numel()]
    return [(p, elements(p).clone(), elements(p.grad).clone()) for p in given]  # type: ignore[arg-type]


def have_moved(before: Weights) -> bool:
    """Whether any weight is not what it was; writes to `.data` leave no other trace."""
    pairs = [(old, elements(p)) for p, old, _ in before]
    return any(old.dtype != new.dtype or old.device != new.device or not torch.equal(old, new) for old, new in pairs)


def moved_along(before: Weights) -> bool:
    """Whether all weights that had a gradient have moved since, together along it or against it."""
    moves = [(elements(p).double() - old.double(), g.double()) for p, old, g in before if g.any()]
    if not moves or not all(move.any() for move, _ in moves):
        return False
    dot, one, two = (
        float(sum((x * y).sum() for x, y in pairs))
        for pairs in (moves, [(m, m) for m, _ in moves], [(g, g) for _, g in moves])
    )
    return bool(abs(dot) > ALONG * (one * two) ** 0.5)
