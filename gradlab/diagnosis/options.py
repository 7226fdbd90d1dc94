"""The rules with their thresholds: `diagnosis=`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields

from gradlab.base.option import Invalid, option, require
from gradlab.diagnosis.rules.clipping import ClipIdle, Overclipped
from gradlab.diagnosis.rules.layers import BrokenGraph, DominantLayer, UpdateTooLarge, Vanishing
from gradlab.diagnosis.rules.loss import Diverged, SmallButHealthy, SpikeRecovered, Stalled
from gradlab.diagnosis.rules.loss_scale import OverflowFP16, ScaleCollapse, ScaleLivelock, UnderflowFP16
from gradlab.diagnosis.rules.nonfinite import NaNGradient, NaNInput, NaNLoss, NaNParameter
from gradlab.diagnosis.rules.norm import Decaying, Exploding, Growing, Spike, ZeroGradient
from gradlab.diagnosis.rules.rule import Rule
from gradlab.diagnosis.rules.saturation import DeadUnits, SaturatedUnits


@option("diagnosis", "default")
@dataclass
class Thresholds:
    """What counts as what. The order of the rules is the order of causes: the first that applies is the verdict."""

    window: int = 20
    """Updates over which a loss is averaged; a run of fewer than two windows gets no verdict from its losses."""
    learning: float = 0.05
    """Smallest relative improvement of the loss that counts as learning."""
    still: float = 1e-6
    """Usual change of the weights, relative to them, below which they do not move."""
    nan_input: NaNInput = field(default_factory=NaNInput)
    nan_parameter: NaNParameter = field(default_factory=NaNParameter)
    nan_loss: NaNLoss = field(default_factory=NaNLoss)
    scale_livelock: ScaleLivelock = field(default_factory=ScaleLivelock)
    scale_collapse: ScaleCollapse = field(default_factory=ScaleCollapse)
    exploding: Exploding = field(default_factory=Exploding)
    overflow_fp16: OverflowFP16 = field(default_factory=OverflowFP16)
    nan_gradient: NaNGradient = field(default_factory=NaNGradient)
    diverged: Diverged = field(default_factory=Diverged)
    broken_graph: BrokenGraph = field(default_factory=BrokenGraph)
    saturated_units: SaturatedUnits = field(default_factory=SaturatedUnits)
    overclipped: Overclipped = field(default_factory=Overclipped)
    vanishing: Vanishing = field(default_factory=Vanishing)
    underflow_fp16: UnderflowFP16 = field(default_factory=UnderflowFP16)
    dead_units: DeadUnits = field(default_factory=DeadUnits)
    zero_gradient: ZeroGradient = field(default_factory=ZeroGradient)
    dominant_layer: DominantLayer = field(default_factory=DominantLayer)
    update_too_large: UpdateTooLarge = field(default_factory=UpdateTooLarge)
    stalled: Stalled = field(default_factory=Stalled)
    loss_spike_recovered: SpikeRecovered = field(default_factory=SpikeRecovered)
    small_but_healthy: SmallButHealthy = field(default_factory=SmallButHealthy)
    growing_norm: Growing = field(default_factory=Growing)
    decaying_norm: Decaying = field(default_factory=Decaying)
    spike: Spike = field(default_factory=Spike)
    clip_idle: ClipIdle = field(default_factory=ClipIdle)

    def __post_init__(self) -> None:
        require(self.window >= 2, "window", self.window, ">= 2")
        require(self.learning > 0, "learning", self.learning, "> 0")
        require(self.still > 0, "still", self.still, "> 0")

    def rules(self) -> Iterator[Rule]:
        """Every rule, in the order of causes."""
        for f in fields(self):
            if isinstance(rule := getattr(self, f.name), Rule):
                yield rule


CODES = tuple(rule.code for rule in Thresholds().rules())
VERDICTS = ("healthy", *(rule.code for rule in Thresholds().rules() if not rule.aside), "interrupted")
"""Every verdict that a run can get."""


def check_verdict(field: str, given: str | None) -> None:
    """Refuse an expectation that no run can meet."""
    if given not in (None, "any", *VERDICTS):
        raise Invalid(field, given, f"must be null, any or one of {', '.join(VERDICTS)}")
