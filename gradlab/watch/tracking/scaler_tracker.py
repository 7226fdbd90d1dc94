"""The state of the loss scaler in a watched loop."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor

from gradlab.watch.call_site import CallSite
from gradlab.watch.graphs.loss_graph import LossWeight, loss_weight
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

LARGE = 64.0
"""Factors of a loss that may be a loss scale."""
REMEMBERED = 16
"""Scaled losses that are remembered at most."""


class ScalerTracker:
    """Reads the loss scale, and remembers scaled losses. Without a scaler, or with a disabled one, the scale is 1."""

    def __init__(self, scaler: Any) -> None:
        self.scaler = scaler
        self.num_scale_calls = self.num_updates = 0
        self.counts_targets = True
        """Whether numbers of targets are of interest, as where several losses are accumulated."""
        self.scales: dict[int, Any] = {}
        """Number of updates -> the scale after them, of the latest ones."""
        self.update_site: CallSite | None = None
        """Call site of the latest `update`."""
        self.stepping: OptimizerTracker | None = None
        """The optimizer whose step the scaler is making."""
        self.scaled: list[tuple[weakref.ref[Tensor], Tensor, LossWeight]] = []
        """(scaled loss, the loss before scaling, its weight), latest last."""

    @property
    def enabled(self) -> bool:
        return self.scaler is not None and bool(self.scaler.is_enabled())

    @property
    def tensor(self) -> Tensor | None:
        return getattr(self.scaler, "_scale", None) if self.scaler is not None else None

    def value(self) -> Any:
        """The loss scale: a float, or a copy of the device's tensor, which the scaler changes in place."""
        scale = self.tensor if self.enabled else None
        if scale is None:
            return 1.0
        return scale.item() if scale.device.type == "cpu" else scale.clone()

    def is_among(self, factors: list[float]) -> bool:
        """Whether the loop has multiplied a loss by the scale itself, which is read for large factors alone."""
        large = [factor for factor in factors if abs(factor) >= LARGE]
        return bool(large) and float(self.value()) in large

    def note_scale(self) -> None:
        if self.num_updates not in self.scales:
            self.scales = dict([*self.scales.items()][-REMEMBERED:]) | {self.num_updates: self.value()}

    def scale_differs(self, updates: set[int]) -> bool:
        """Whether the scale was another one after some of these numbers of updates."""
        return len({float(self.scales[each]) for each in updates if each in self.scales}) > 1

    def in_gradients(self, tracker: OptimizerTracker) -> Any:
        """The scale that an optimizer's gradients are still multiplied by, or None."""
        scaled = tracker.accumulated and not tracker.scaling.unscaled and all(b.scaled for b in tracker.accumulated)
        return self.value() if scaled and self.enabled else None

    def remember(self, scaled: Tensor, loss: Tensor, weight: LossWeight) -> None:
        self.scaled = [each for each in self.scaled if each[0]() is not None][-REMEMBERED:]
        self.scaled.append((weakref.ref(scaled), loss.detach(), weight))

    def has_scaled(self, loss: Any) -> bool:
        return any(reference() is loss for reference, _, _ in self.scaled)

    def total(self, roots: list[Tensor]) -> tuple[Any, LossWeight, bool]:
        """The sum of what is differentiated, without the loss scale, or None if one of them is not one number; its
        weight; whether it was scaled."""
        each = [self.unscaled_loss(root) for root in roots]
        if len(each) == 1:
            return each[0]
        losses = [loss for loss, _, _ in each]
        known = losses and not any(loss is None for loss in losses)
        scaled = bool(each) and all(scaled for *_, scaled in each)
        return sum(losses[1:], losses[0]) if known else None, LossWeight(), scaled

    def unscaled_loss(self, root: Tensor) -> tuple[Any, LossWeight, bool]:
        """The loss without the scale, or None if it is not one number; its weight; whether it was scaled."""
        for reference, loss, weight in self.scaled:
            if reference() is root:
                return (loss.reshape(()) if loss.numel() == 1 else None), weight, True
        weight = loss_weight(root, self.tensor, self.counts_targets)
        if root.numel() != 1:
            return None, weight, weight.num_scales > 0
        number = root.detach() if root.dim() == 0 else root.detach().reshape(())
        if weight.num_scales and self.tensor is not None:
            number = number / self.tensor
        return number, weight, weight.num_scales > 0
