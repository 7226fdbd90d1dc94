"""What a loss scaler has done for one optimizer."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradlab.watch.call_site import CallSite


@dataclass
class ScalerStage:
    """Between two steps."""

    stage: str = "ready"
    """ready, unscaled or stepped, as the scaler has it for this optimizer."""
    num_scale_calls: int = 0
    """Calls of `scaler.scale` up to the last step."""
    step_site: CallSite | None = None
    """Call site of the latest `scaler.step`."""
    early_update_site: CallSite | None = None
    """Call site of a `scaler.update` before a step on what the gradients hold."""
    overflow_abandoned: bool = False
    """Whether gradients that overflowed were dropped without the scaler since its last update."""
    unscaled: bool = False
    """Whether `scaler.unscale_` has divided the gradients by the loss scale."""
    unscaled_at: int = 0
    """Backward passes in the gradients when it did."""
    unscale_site: CallSite | None = None
    left_scaled: bool = False
    """Whether the loop had not called `scaler.unscale_` when it called the latest `scaler.step`."""
    norms: list[float] = field(default_factory=list)
    """Of scaled gradients at the first steps, as the loop has written them itself."""
