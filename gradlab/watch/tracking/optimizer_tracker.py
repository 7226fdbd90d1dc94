"""The state of one optimizer in a watched loop: what its gradients hold, and what was called since its last step."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from typing import Any

import torch

from gradlab.watch.arguments import type_name
from gradlab.watch.call_site import CallSite, call_stack
from gradlab.watch.events import BackwardPass, ClipCall, ScheduleStep, ThrownPasses
from gradlab.watch.making_lines import handed_from
from gradlab.watch.source_lines import skipping_line
from gradlab.watch.tracking import moved_weights
from gradlab.watch.tracking.closure_run import ClosureRun
from gradlab.watch.tracking.constant_answers import ConstantAnswer
from gradlab.watch.tracking.early_freezes import EARLY, EarlyFreezes
from gradlab.watch.tracking.feeding import Feeding
from gradlab.watch.tracking.left_gradients import LeftGradients, version
from gradlab.watch.tracking.manual_gradients import ManualWrites, reference
from gradlab.watch.tracking.other_optimizers import OtherOptimizers
from gradlab.watch.tracking.rates import Rates
from gradlab.watch.tracking.scaler_stage import ScalerStage
from gradlab.watch.tracking.target_sizes import TargetSizes

MAX_SAMPLED = 16
"""Gradients whose version counters are compared to detect writes; their values are not read."""
NAMES = 3
"""Names that are listed."""


@dataclass(eq=False)
class OptimizerTracker:
    """Observers record in it what happens; rules read it."""

    index: int
    optimizer: torch.optim.Optimizer
    parameter_names: InitVar[dict[torch.Tensor, str]]

    # What the gradients hold.
    accumulated: list[BackwardPass] = field(default_factory=list)
    """The backward passes that the gradients are the sum of."""
    num_backwards: int = 0
    """Backward passes that added to the gradients since the start."""
    num_used: int = 0
    """Those until the latest step: another optimizer may have taken its place."""
    left: LeftGradients = field(default_factory=LeftGradients)
    writes: ManualWrites = field(default_factory=ManualWrites)
    scaling: ScalerStage = field(default_factory=ScalerStage)
    given_gradients: bool = False
    """Whether a backward pass was ever given a gradient to begin with, whose sign may be any."""
    is_policy: bool = False
    """Whether a loss of it weighs logarithms by advantages: its level says nothing of what is learnt."""
    accumulates: bool = False
    """Whether there was ever more than one backward pass in the gradients."""

    # What happened since the last step.
    dropped: list[tuple[BackwardPass, CallSite | None]] = field(default_factory=list)
    """Backward passes that were zeroed before any optimizer used them, and where."""
    thrown: ThrownPasses = field(default_factory=ThrownPasses)
    functional: list[Any] = field(default_factory=list)
    """Losses whose gradients `torch.autograd.grad` returned, which adds them to no parameter's."""
    clips: list[ClipCall] = field(default_factory=list)
    clipped_last: bool = False
    """Whether the gradients of the latest step were clipped."""
    schedule_steps: list[ScheduleStep] = field(default_factory=list)

    # Steps.
    attempts: int = 0
    """Updates so far, skipped ones included."""
    started: bool = False
    """Whether a step has begun and not returned."""
    nested: int = 0
    """Steps that the running step calls."""
    closure: ClosureRun = field(default_factory=ClosureRun)
    calls_hooks: bool = False
    """Whether the latest step has called hooks; a compiled one does not."""
    state_versions: list[int] | None = None
    """Version counters of the optimizer's state after the latest backward pass."""
    steps_without_drop: int = 0
    """Steps before which nothing was dropped."""
    dropped_last: int = 0
    """Backward passes that were dropped before the latest step."""
    window: int | None = None
    """Micro-batches in an update, known from a full window whose losses were divided by it."""
    first: tuple[int, float] = (0, 0.0)
    """Passes in the first update, and the weight of each of their losses."""
    constant: ConstantAnswer = field(default_factory=ConstantAnswer)
    """What the labels say that a constant answer would reach."""
    graph_tokens: list[list[Any]] = field(default_factory=list)
    """For each of the latest updates, weak references that are alive while graphs of its losses are."""
    initial_schedule_sites: list[CallSite | None] = field(default_factory=list)
    """Call sites of schedule steps before the first backward pass."""
    feeding: Feeding = field(default_factory=Feeding)
    early_freezes: EarlyFreezes = field(default_factory=EarlyFreezes)
    targets: TargetSizes = field(default_factory=TargetSizes)
    others: OtherOptimizers = field(default_factory=OtherOptimizers)
    rates: Rates = field(default_factory=Rates)
    backward_site: CallSite | None = None
    """Call site of the latest backward pass that reached it."""
    step_site: CallSite | None = None
    """Call site of the latest step."""
    divided_at: CallSite | None = None
    """Where its losses are multiplied or divided by a number last, before they go backward."""
    step_meant: CallSite | None = None
    """The line that says which optimizer steps, of the first step."""
    clip_site: CallSite | None = None
    """Call site of the latest call that clipped its gradients."""
    loss_site: CallSite | None = None
    """Where the loss of its second update is computed; None if that was not followed."""
    cut_site: CallSite | None = None
    """Where the graph of some of its weights ends, before it reaches a loss."""
    num_looking_ahead: int = 0
    """Backward passes that added to a gradient at other weights."""
    steps_again: int = 0
    """Steps on what the step before has used, at weights that nothing else has moved since."""
    after_step: tuple[int, moved_weights.Weights] = (0, [])
    """Version counter of a weight after the latest step, and its elements once they may tell of a mistake."""
    terms_again: int = 0
    """Steps on a loss of which a term was a loss that this optimizer had stepped on."""

    def __post_init__(self, parameter_names: dict[torch.Tensor, str]) -> None:
        self.all_names: dict[int, str] = {}
        """id of a parameter -> its name, of those frozen since too."""
        self.set_parameters(parameter_names)
        self.first_weight_version = self.weight_version
        self.writes.since_step = any(each != -1 for each in self.seen_versions)

    def set_parameters(self, parameter_names: dict[torch.Tensor, str]) -> None:
        """Find the trained parameters. parameter_names: names of the models' parameters; others get a number."""
        self.params = self.trained() or [p for group in self.optimizer.param_groups for p in group["params"]]
        if not self.params:
            raise ValueError(f"watch: optimizer is {type_name(self.optimizer)} without parameters")
        self.of_model = any(p in parameter_names for p in self.params)
        self.names = [parameter_names.get(p, f"parameter{i}") for i, p in enumerate(self.params)]
        self.all_names |= {id(p): name for name, p in zip(self.names, self.params, strict=True)}
        stride = max(1, -(-len(self.params) // MAX_SAMPLED))
        self.sample = self.params[::stride]
        if self.sample[-1] is not self.params[-1]:
            self.sample.append(self.params[-1])
        self.sharded = any(hasattr(p, "_local_tensor") for p in self.sample)
        self.smallest = min(self.params, key=lambda p: p.numel() or 1 << 60)
        self.device_type = self.params[0].device.type
        self.ids = {id(p) for p in self.params}
        self.seen_versions = self.versions()

    def note_step(self, site: CallSite | None, num_backwards: int, in_backward: bool) -> None:
        """At a step. in_backward: a backward pass is running, which counts when it is over."""
        self.step_site, self.others.replaced = site, False
        if self.step_meant is None:
            self.step_meant = handed_from(call_stack())
        written = self.writes.since_step or in_backward
        self.feeding.at_step(self.params, self.num_backwards, num_backwards, written)
        self.early_freezes.at_step(self.params, self.attempts)

    @property
    def descends(self) -> bool:
        """Whether its steps are known to make small what goes backward."""
        return self.is_plain and not any(group.get("maximize") for group in self.optimizer.param_groups)

    @property
    def ascends(self) -> bool:
        """Whether they are known to make it large."""
        return self.is_plain and all(group.get("maximize") for group in self.optimizer.param_groups)

    @property
    def is_plain(self) -> bool:
        """Whether its steps are those of PyTorch, by the gradients of the losses."""
        theirs = type(self.optimizer).__module__.startswith("torch.optim")
        return theirs and not self.given_gradients and not self.writes.ever

    def name_of(self, parameter: torch.Tensor) -> str:
        return self.all_names.get(id(parameter), "a parameter")

    def parameters_changed(self) -> bool:
        """Whether parameters were frozen, unfrozen or replaced."""
        now = self.trained()
        return len(now) != len(self.params) or any(p is not q for p, q in zip(now, self.params, strict=True))

    def trained(self) -> list[torch.Tensor]:
        """Parameters that require gradients, without those whose elements all lie on other ranks."""
        return [p for g in self.optimizer.param_groups for p in g["params"] if p.requires_grad and p.numel()]

    def versions(self) -> list[int]:
        """Version counters of the sampled gradients; -1 where there is none."""
        if self.sharded:
            grads = [getattr(p.grad, "_local_tensor", p.grad) for p in self.sample]
            return [-1 if g is None else version(g) for g in grads]
        return [-1 if (g := p.grad) is None else id(g) + g._version for p in self.sample]

    def accept_writes(self) -> None:
        """All writes to the gradients up to now were observed."""
        self.seen_versions = self.versions()

    def detect_writes(self) -> None:
        """Detect writes to the gradients since the last observed call: zeroing, or something else."""
        now = self.versions()
        if self.writes.by_value:
            self.writes.by_value, self.seen_versions = False, now
        elif now != self.seen_versions:
            used = self.accumulated and not self.unused
            if all(each == -1 for each in now) or (used and self.writes.are_zeros(self.sample)):
                self.zeroed(None)
            else:
                self.writes.note(refilled=bool(self.unused))
            self.seen_versions = now

    def remember_gradient(self) -> None:
        """Keep a small gradient after a backward pass, to compare with later, unless each update has one pass."""
        several = self.accumulates or self.attempts < EARLY
        self.writes.reference = reference(self.smallest, self.sharded) if several else None

    def reset(self) -> None:
        """The loop ran unwatched for a while."""
        self.accumulated, self.dropped, self.clips, self.schedule_steps, self.functional = [], [], [], [], []
        self.started, self.closure = False, ClosureRun()
        self.left.forget()
        self.writes.forget()
        self.writes.by_value, self.writes.reference = False, None
        self.scaling.stage, self.scaling.early_update_site = "ready", None
        self.scaling.unscaled = self.scaling.overflow_abandoned = False
        self.accept_writes()
        self.writes.since_step = any(each != -1 for each in self.seen_versions)

    @property
    def unused(self) -> list[BackwardPass]:
        """The backward passes in the gradients that no optimizer has used."""
        return [b for b in self.accumulated if not b.used_by]

    @property
    def own(self) -> list[BackwardPass]:
        """The backward passes in the gradients that this optimizer has not used; another one may have."""
        return [b for b in self.accumulated if self.index not in b.used_by]

    @property
    def is_regular(self) -> bool:
        """Whether the gradients are those of one backward pass of which no rule about the step has anything to say."""
        if len(self.accumulated) != 1 or self.dropped or self.window is not None or not self.feeding.fed:
            return False
        return not (self.accumulated[0].is_unusual or any(step.num_unused for step in self.schedule_steps))

    @property
    def skip_site(self) -> CallSite | None:
        """Where the loop left out the step on what the gradients hold, as far as its source shows."""
        unscale = [self.scaling.unscale_site] if self.scaling.unscaled else []
        return skipping_line([*unscale, *(clip.site for clip in self.clips), *(b.site for b in self.unused)])

    @property
    def weight_version(self) -> int:
        return self.sample[0]._version

    @property
    def is_still(self) -> bool:
        """Whether the weights are what they were when the watch began."""
        return self.weight_version == self.first_weight_version

    def unmoved_since(self, b: BackwardPass) -> bool:
        """Whether the weights are what they were when a backward pass ran."""
        if b.weight_versions.get(self.index) != self.weight_version:
            return False
        return self.index not in b.weights or not moved_weights.have_moved(b.weights[self.index])

    @property
    def is_left_as_stepped(self) -> bool:
        """Whether nothing has moved the weights since the latest step."""
        version, after = self.after_step
        return self.attempts > 0 and version == self.weight_version and not moved_weights.have_moved(after)

    def note_weights(self, b: BackwardPass) -> None:
        """After a backward pass: what the weights are."""
        b.weight_versions[self.index] = self.weight_version
        if self.attempts < moved_weights.UPDATES and not self.sharded:
            b.weights[self.index] = moved_weights.weights_now(self.sample)

    def zeroed(self, site: CallSite | None) -> None:
        """The gradients were set to zero or None."""
        dropped = [(b, site) for b in self.accumulated if not b.used_by and self.unmoved_since(b)]
        if self.closure.running:
            self.closure.dropped = dropped
        else:
            self.dropped += dropped
        self.accumulated, self.clips, self.others.clips = [], [], []
        self.left.forget()
        self.writes.since_step, self.writes.factors = False, []
        self.scaling.unscaled, self.scaling.early_update_site = False, None

    def stepped(self) -> None:
        """The optimizer has stepped, or was skipped."""
        if self.left.versions and not self.left.refilled:
            self.accumulated = self.own  # what the others have left is of no parameter that is still trained
        self.left.forget()
        for b in self.accumulated:
            b.used_by.add(self.index)
        self.steps_without_drop, self.num_used = self.steps_without_drop + (not self.dropped), self.num_backwards
        self.dropped_last, self.clipped_last = len(self.dropped), bool(self.clips)
        self.dropped, self.functional, self.clips, self.schedule_steps = [], [], [], []
        self.writes.forget()
        self.scaling.early_update_site = None
        several = self.steps_again or self.others.is_successor
        self.after_step = self.weight_version, moved_weights.weights_now(self.sample) if several else []
        self.accept_writes()


def listed(names: list[str]) -> str:
    more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
    return ", ".join(names[:NAMES]) + more
