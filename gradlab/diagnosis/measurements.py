"""What is known of a run besides its lines of metrics: no name, no expectation, no remedy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradlab.diagnosis.inspection import Inspection
    from gradlab.diagnosis.replay.overflow import Overflow


@dataclass
class Measurements:
    """What a run measured besides its lines of metrics, and how it ended."""

    status: str = "completed"
    """completed, failed, given_up or interrupted."""
    error: str | None = None
    scale_too_small: bool = False
    """Whether the run ended because the loss scale was too small."""
    fp16_forward: bool = False
    """Whether the forward pass rounds to fp16."""
    dynamic_loss_scale: bool = False
    """Whether there is a loss scale that moves."""
    clips: bool = False
    """Whether gradients are clipped."""
    clips_whole: bool = True
    """Whether clipping, if there is any, scales the whole gradient by one number."""
    overflow: Overflow | None = None
    """The first tensor that was not finite when the failing update was run again."""
    initial_overflows: tuple[int, int] | None = None
    """Of some micro-batches, those whose forward pass overflows with the initial weights, and of how many."""
    inspection: Inspection | None = None
    """Of the model at the end."""
    never_had_gradient: list[str] | None = None
    """Parameters without a gradient in every update; None: only those updates are known whose layers were recorded."""
    need_not_fall: str = ""
    """Why its loss need not fall, in words that follow "its loss"; empty where it should."""
    cut: str = ""
    """Where the graph of weights ends that it depends on, as far as known: a term of it may be trained by nothing."""
    second_moments: bool = True
    """Whether the optimizer keeps second moments of the gradients, as Adam does."""
    eps: float = 0.0
    """What such an optimizer adds to the root of a second moment, where that is more than its default."""
    betas: tuple[float, float] | None = None
    """Adam's, where the first is above the root of the second: then no step is bounded by the rate."""
    noise: float = 0.0
    """Norm of the noise that was added to the gradient of the last update, as expected."""
    input_size: float = math.nan
    """Largest magnitude in what a usual sample gives the first layer that multiplies it; NaN: not known."""
    target_size: float = math.nan
    """The same of a usual sample's target; NaN: not known."""
    reverses: bool = False
    """Whether gradients are turned round on their way: its loss is a game of two networks."""
    makes_targets: str = ""
    """Why the model may make its own targets, as a sentence; empty where nothing shows that it does."""
    summed: bool = False
    """Whether its loss, or what its gradient is of, is a sum over samples."""
    narrow: str = "bf16 or fp16"
    """The type of weights that have less than 32 bits."""
    targets: tuple[float, float] | None = None
    """Mean squares of a regression's targets at the beginning and at the end, where known."""
    terms: tuple[int, int] | None = None
    """Terms of the loss at the beginning and at the end, where these are more."""
    constant: float | None = None
    """Loss of the best constant answer, where known: a model that is no better has learnt nothing from the inputs."""
    eval_constant: float | None = None
    """The same on the data of the evaluations; None: as on the training data."""
    floor: float = 0.0
    """The lowest loss that there can be, as far as known: above zero where targets are shares, as smoothed labels."""
    constants_of_terms: Mapping[str, float] = field(default_factory=dict)
    """Loss of the best constant answer to single terms of the loss, where it was found."""
    constant_found: bool = False
    """Whether these were found by minimising a loss of which nothing else is known, such as where its zero is."""
    constant_chosen: bool = False
    """Whether such an answer has another loss than other constant ones have, as far as known."""
    header: Mapping[str, Any] | None = None
    """The first line of layers.jsonl: names and shapes of the parameters whose norms are recorded; None: not known."""
    rate: float | None = None
    """The learning rate as it is set, which a schedule scales; None: not known."""
    decay: Callable[[float, float, float], float] | None = None
    """How many times weight decay alone would have divided the weights by e: see `OptimizerOption.decays`."""
