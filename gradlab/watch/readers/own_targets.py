"""Targets that the trained weights make themselves: their losses need not fall, since what they ask for moves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from gradlab.watch.events import Violation
from gradlab.watch.followed_update import FOLLOWED, NETWORKS, Reader, tensors_in
from gradlab.watch.readers.broadcasts import LOSSES
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker


class OwnTargets(Reader):
    """Looks for loss functions that compare an output with one that was detached, or with what was computed of it.

    As the codes of a VQ-VAE, which follow the outputs of its encoder. An output without a gradient of weights of the
    same shapes is one of a copy, as that of a target network is.
    """

    def __init__(self) -> None:
        self.makers: set[int] = set()
        """`OptimizerTracker.index` of the optimizers whose weights make targets."""
        self.detached: list[Tensor] = []
        """Kept for the length of an update, so that no other tensor gets their memory."""

    def begin(self, tracker: OptimizerTracker, without: list[Tensor], flat: list[Tensor]) -> bool:
        self.detached, self.memory, self.tracker = [], set[int](), tracker
        self.shapes = {p.shape for p in tracker.params}
        return tracker.attempts in FOLLOWED and tracker.index not in self.makers

    def follow(self, name: str, func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        given = [each for each in tensors_in(args) if not each.is_inference()]
        if name in LOSSES and isinstance(result, Tensor) and result.requires_grad:
            if any(not each.requires_grad and address(each) in self.memory for each in given):
                self.makers.add(self.tracker.index)
        elif (
            (name == "detach" and given and given[0].grad_fn is not None)
            or any(address(each) in self.memory for each in given)
            or (name in NETWORKS and self.is_copy(given))
        ):
            made = [each for each in tensors_in([result]) if not each.requires_grad and each.is_floating_point()]
            self.detached += made
            self.memory |= {address(each) for each in made} - {0}

    def is_copy(self, given: list[Tensor]) -> bool:
        """Whether a network of such weights is called."""
        weights = [each for each in given if isinstance(each, nn.Parameter) and each.dim() > 1]
        return bool(weights) and all(each.shape in self.shapes for each in weights)

    def end(self) -> Iterator[Violation]:
        self.detached, self.memory = [], set()
        yield from ()


def address(tensor: Tensor) -> int:
    """0 of a tensor without memory of its own, as a sparse one."""
    has_memory = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided and not tensor.is_meta
    return tensor.untyped_storage().data_ptr() if has_memory else 0
