"""What the best constant answer would reach in a watched loop, by the labels that its losses were given.

Only of mean cross-entropies: their labels are data. The values that a regression is given may be the model's own, as in
Q-learning, where an error like that of a constant is no failure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gradlab.watch.graphs.loss_graph import LossWeight, is_packed, node_below_factors

CLASSES = {"NllLossBackward0", "NllLoss2DBackward0"}
LABELS = {"BinaryCrossEntropyBackward0", "BinaryCrossEntropyWithLogitsBackward0"}
MAX_DEPTH = 8
"""Nodes between the negative log-likelihood and the logarithm of the softmax."""
MIN_PASSES = 5
"""Passes whose labels are known, of all that were looked at."""
ROWS = 20
"""Labels for each class that was seen, below which the entropy of a sample is far below that of the data."""


@dataclass
class LabelCounts:
    """Of the targets of one or more backward passes; tensors on their device, which is not waited for."""

    key: tuple[str, int]
    """Kind, and number of classes or of labels."""
    counts: Tensor
    """(C,): how often each class, or how often each label is 1."""
    rows: Tensor
    """(): targets counted."""
    several: Tensor
    """(): of the passes, those whose targets are not all alike. A GAN's are."""
    passes: int = 1


def label_counts(loss: Tensor, weight: LossWeight) -> LabelCounts | None:
    """Before the backward pass; None if the loss is not a mean cross-entropy alone, or its targets are no labels."""
    try:
        node: Any = node_below_factors(loss.grad_fn)
        if weight.reduction != "mean" or node is None or is_packed(node):
            return None
        if hasattr(node._saved_target, "to_local"):
            return None
        target = node._saved_target.detach()
        if node.name() in CLASSES and node._saved_weight is None and is_softmax(node):
            return of_classes(target, node._saved_self.shape[1], node._saved_ignore_index)
        if node.name() in LABELS and node._saved_weight is None and getattr(node, "_saved_pos_weight", None) is None:
            return of_labels(target)
    except (RuntimeError, AttributeError):  # freed, or another kind of node
        pass
    return None


def is_softmax(node: Any) -> bool:
    """Whether the logarithm of a softmax is what the negative log-likelihood is of."""
    for _ in range(MAX_DEPTH):
        inputs = [each for each, _ in node.next_functions if each is not None]
        if len(inputs) != 1:
            return False
        if (node := inputs[0]).name() == "LogSoftmaxBackward0":
            return True
    return False


def of_classes(target: Tensor, classes: int, ignored: int) -> LabelCounts:
    counted = (target != ignored).flatten()
    shares = torch.zeros(classes, device=target.device)
    shares.scatter_add_(0, target.flatten().clamp(0, classes - 1), counted.float())
    return LabelCounts(("classes", classes), shares, shares.sum(), (shares.amax() < shares.sum()).float())


def of_labels(target: Tensor) -> LabelCounts:
    rows = target.float().flatten(1) if target.ndim > 1 else target.float().unsqueeze(1)
    binary = ((rows == 0) | (rows == 1)).all()  # as those of a distillation are not
    counts, number = rows.sum(0), torch.tensor(float(len(rows)), device=rows.device)
    several = (((counts > 0) & (counts < number)).any() & binary).float()
    return LabelCounts(("labels", rows.shape[1]), counts, number, several)


@dataclass
class ConstantAnswer:
    """What was given to one optimizer's losses."""

    known: LabelCounts | None = None
    unknown: int = 0
    """Passes without labels, or with labels of another kind."""
    factors: set[float] = field(default_factory=set)

    def note(self, found: LabelCounts | None, weight: LossWeight) -> None:
        if found is None or (self.known is not None and self.known.key != found.key):
            self.unknown += 1
            return
        self.factors.add(weight.product)
        if (known := self.known) is None:
            self.known = found
            return
        for name in ("counts", "rows", "several"):
            setattr(known, name, getattr(known, name) + getattr(found, name))
        known.passes += 1

    @property
    def most(self) -> float:
        """In what share of all the best constant answer of one label is right."""
        known = self.known
        if known is None:
            return 1.0
        share = float(known.counts.max() / known.rows)
        return share if known.key[0] == "classes" else max(share, 1 - share)

    def loss(self, passes: float) -> float | None:
        """Its loss; None where unknown. passes: backward passes of an update, whose losses add up to what is logged."""
        known = self.known
        if known is None or self.unknown or known.passes < MIN_PASSES or len(self.factors) > 1:
            return None
        if not abs(passes * max(self.factors) - 1) < 0.1 or not 2 * float(known.several) > known.passes:
            return None
        if float(known.rows) < ROWS * (int((known.counts > 0).sum()) if known.key[0] == "classes" else 2):
            return None
        share = (known.counts / known.rows).double()
        if known.key[0] == "classes":
            return float(torch.special.entr(share).sum())
        return float((torch.special.entr(share) + torch.special.entr(1 - share)).mean())
