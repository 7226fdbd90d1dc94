"""Errors that are small before they are made large, as where a trained network is to forget something."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gradlab.watch.graphs.advantages import inputs_of
from gradlab.watch.graphs.loss_graph import is_packed

UNLEARNT = 0.9
"""Of the error of a network that knows nothing: before its first updates one has about all of it, or more."""
ENDS = ("LogSoftmaxB", "SoftmaxB", "LogsumexpB", "SigmoidB", "LogSigmoidB")
"""Beginnings of the names of nodes of probabilities."""


def is_learnt(node: Any) -> bool:
    """Whether the error that a node is lies below that of an answer that knows nothing: all classes alike, or 0 for
    every value."""
    if is_packed(node):
        return False
    name = node.name()
    if name.startswith("NllLoss"):
        given, ignored = node._saved_self.detach(), signed(node._saved_ignore_index)
        error = F.nll_loss(given, node._saved_target, ignore_index=ignored)
        return error.item() < UNLEARNT * math.log(given.shape[1])
    if name.startswith("BinaryCrossEntropy"):
        loss = F.binary_cross_entropy_with_logits if "Logits" in name else F.binary_cross_entropy
        return loss(node._saved_self.detach(), node._saved_target).item() < UNLEARNT * math.log(2)
    if hasattr(node, "_saved_target") and node._saved_target.is_floating_point():
        target = node._saved_target
        return bool(F.mse_loss(node._saved_self.detach(), target) < UNLEARNT * target.square().mean())
    return False


def of_nothing(node: Any) -> float:
    """Minus the logarithm that a node of logarithms of probabilities has where all classes are alike."""
    while node is not None and not node.name().startswith(
        ("LogSoftmaxB", "SoftmaxB", "LogsumexpB", "SigmoidB", "LogSig")
    ):
        node = (inputs_of(node) or [None])[-1]
    if node is None or "Sig" in node.name():
        return math.log(2)
    dim = node._saved_dim[0] if isinstance(node._saved_dim, (tuple, list)) else node._saved_dim
    values = node._saved_self if node.name().startswith("Logsumexp") else node._saved_result
    return math.log(values.shape[signed(dim)])


def logarithms(node: Any) -> Tensor | None:
    """What a node of logarithms of probabilities has returned, if it has kept it."""
    if is_packed(node):
        return None
    if node.name() == "LogSoftmaxBackward0":
        return node._saved_result.detach()  # type: ignore[no-any-return]
    if node.name() == "LogSigmoidBackward0":
        return F.logsigmoid(node._saved_self.detach())
    return torch.log(node._saved_self.detach()) if node.name() == "LogBackward0" else None


def signed(number: int) -> int:
    """Graphs keep what is below 0 as a large number."""
    return number - (1 << 64) if number >= 1 << 63 else number
