"""Errors that are small before they are made large, as where a trained network is to forget something."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gradlab.watch.graphs.advantages import inputs_of
from gradlab.watch.graphs.loss_graph import is_packed

UNLEARNT = 0.9
"""Of the error of a network that knows nothing: before its first updates one has about all of it, or more."""
MAX_BELOW = 32
"""Nodes between an error and what it is of at most."""


def is_learnt(node: Any, value: float | None, squares: Mapping[Any, float]) -> bool:
    """Whether an error is below that of an answer that knows nothing: all classes alike, or 0 for every value.

    Where neither the graph shows the targets, nor the value of the loss the error, it is asked whether the answers are
    certain. value: minus the mean of the error. squares: node of a difference -> mean square of the targets.
    """
    if is_square(node):
        return float(node._saved_self.detach().square().mean()) < UNLEARNT * squares[inputs_of(node)[0]]
    queue = [node]
    for each in queue:
        if is_packed(each):
            return False
        if (found := error_of(each)) is not None:
            error, of_nothing = found
            error = -value if value is not None and each.name() == "LogsumexpBackward0" else error
            return error < UNLEARNT * of_nothing
        queue += inputs_of(each) if len(queue) < MAX_BELOW else []
    return False


def is_square(node: Any) -> bool:
    return bool(node.name() == "PowBackward0" and node._saved_exponent == 2)


def error_of(node: Any) -> tuple[float, float] | None:
    """An error, or the entropy of answers; and the same of an answer that knows nothing."""
    name = node.name()
    if name.startswith("NllLoss"):
        given, ignored = node._saved_self.detach(), signed(node._saved_ignore_index)
        return F.nll_loss(given, node._saved_target, ignore_index=ignored).item(), math.log(given.shape[1])
    if name.startswith("BinaryCrossEntropy"):
        loss = F.binary_cross_entropy_with_logits if "Logits" in name else F.binary_cross_entropy
        return loss(node._saved_self.detach(), node._saved_target).item(), math.log(2)
    if hasattr(node, "_saved_target"):
        target = node._saved_target
        return F.mse_loss(node._saved_self.detach(), target).item(), target.square().mean().item()
    if name == "LogSoftmaxBackward0":
        return entropy(node._saved_result.exp(), node._saved_dim)
    if name == "SoftmaxBackward0":
        return entropy(node._saved_result, node._saved_dim)
    if name == "LogsumexpBackward0":
        return entropy(node._saved_self.softmax(signed(node._saved_dim[0])), node._saved_dim[0])
    if name == "SigmoidBackward0":
        return entropy(torch.stack([node._saved_result, 1 - node._saved_result]), 0)
    return None


def entropy(shares: Tensor, dim: int) -> tuple[float, float]:
    each = torch.special.entr(shares.detach()).sum(signed(dim))
    return each.mean().item(), math.log(shares.shape[signed(dim)])


def signed(number: int) -> int:
    """Graphs keep what is below 0 as a large number."""
    return number - (1 << 64) if number >= 1 << 63 else number
