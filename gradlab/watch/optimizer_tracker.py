"""The state of one optimizer in a watched loop: what its gradients hold, and what was called since its last step."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from statistics import median
from typing import Any

import torch

from gradlab.watch import moved_weights
from gradlab.watch.arguments import type_name
from gradlab.watch.call_site import CallSite
from gradlab.watch.constant_answers import ConstantAnswer
from gradlab.watch.events import BackwardPass, ClipCall, ScheduleStep
from gradlab.watch.manual_gradients import Reference, manual_factor, reference
from gradlab.watch.rates import Rates
from gradlab.watch.source_lines import skipping_line
from gradlab.watch.update_metrics import elements

MAX_SAMPLED = 16
"""Gradients whose version counters are compared to detect writes; their values are not read."""
EARLY = 2
"""Updates after which parameters may be frozen on purpose: nobody begins to train them for fewer."""
OPPOSITE = -0.1
"""Cosine below which gradients are opposed."""
TARGETS = 3
"""Passes whose targets are compared with those of as many others."""
NAMES = 3
"""Names that are listed."""
MAX_ZERO_CHECKS = 3
"""Times that gradients are read to see whether they were zeroed manually: reading waits for the device."""


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
    unscaled: bool = False
    """Whether `scaler.unscale_` has divided the gradients by the loss scale."""
    unscaled_at: int = 0
    """Backward passes in the gradients when it did."""
    unscale_site: CallSite | None = None
    clipped_by_value: bool = False
    """Whether a call that clips by value is running, or was the last that wrote to the gradients."""
    left: dict[torch.Tensor, int] = field(default_factory=dict)
    """Parameter -> version of its gradient, of those that were left since the last step when others were zeroed."""
    refilled: set[int] = field(default_factory=set)
    """ids of those that a backward pass has added to since."""
    manually_written: bool = False
    """Whether the gradients were written to outside of observed calls since the last step."""
    writes_manually: bool = False
    """Whether they ever were, other than to zero them."""
    given_gradients: bool = False
    """Whether a backward pass was ever given a gradient to begin with, whose sign may be any."""
    manually_reduced: bool = False
    """Whether the loop has summed the gradients over ranks itself since the last step."""
    manual_factors: list[float] = field(default_factory=list)
    """Factors that the loop has multiplied all gradients by since the last step."""
    is_policy: bool = False
    """Whether a loss of it weighs logarithms by advantages: its level says nothing of what is learnt."""
    accumulates: bool = False
    """Whether there was ever more than one backward pass in the gradients."""
    reference: Reference | None = None
    """A small parameter and its gradient after the latest backward pass."""
    zero_checks: int = 0
    manually_zeroed: bool = True
    """Result of the latest check of whether written gradients are zeros."""

    # What happened since the last step.
    dropped: list[tuple[BackwardPass, CallSite | None]] = field(default_factory=list)
    """Backward passes that were zeroed before any optimizer used them, and where."""
    thrown: list[tuple[BackwardPass, CallSite | None]] = field(default_factory=list)
    """Those of the update before whose lines are not those of the passes that were used then, and where."""
    num_thrown: int = 0
    """Updates in a row with any."""
    num_before_thrown: int = 0
    """`steps_without_drop` at the latest of them."""
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
    has_closure: bool = False
    """Whether the latest step was given a closure."""
    in_closure: bool = False
    """Whether a step is running that calls a closure."""
    dropped_in_closure: list[tuple[BackwardPass, CallSite | None]] = field(default_factory=list)
    """Backward passes of a closure that were zeroed after the latest of them, and where."""
    closure_passes: list[BackwardPass] = field(default_factory=list)
    """Backward passes in the closure of the running step."""
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
    constant: ConstantAnswer = field(default_factory=ConstantAnswer)
    """What the labels say that a constant answer would reach."""
    targets: list[torch.Tensor] = field(default_factory=list)
    """Mean squares of the targets of single passes: of the first few, and of the latest."""
    graph_tokens: list[list[Any]] = field(default_factory=list)
    """For each of the latest updates, weak references that are alive while graphs of its losses are."""
    initial_schedule_sites: list[CallSite | None] = field(default_factory=list)
    """Call sites of schedule steps before the first backward pass."""
    fed: bool = False
    """Whether any backward pass has reached the parameters, or they had a gradient at any step."""
    empty_steps: int | None = 0
    """Steps at which no parameter had a gradient; None once one had."""
    starved: int = 0
    """Steps before, with a backward pass since the one before."""
    num_backwards_seen: int = 0
    """Backward passes of the loop up to the latest step."""
    num_own_seen: int = 0
    """Those of them that added to the gradients."""
    unreached: int = 0
    """The latest steps, each after backward passes that added nothing to the gradients, which earlier ones had fed."""
    rates: Rates = field(default_factory=Rates)
    backward_site: CallSite | None = None
    """Call site of the latest backward pass that reached it."""
    step_site: CallSite | None = None
    """Call site of the latest step."""
    clip_site: CallSite | None = None
    """Call site of the latest call that clipped its gradients."""
    moving: set[int] = field(default_factory=set)
    """ids of the groups that had a learning rate over 0 at some update."""
    loss_site: CallSite | None = None
    """Where the loss of its second update is computed; None if that was not followed."""
    cut_site: CallSite | None = None
    """Where the graph of some of its weights ends, before it reaches a loss."""
    frozen_early: list[torch.Tensor] = field(default_factory=list)
    """Parameters that had a gradient in the first `EARLY` updates, and required none at any step since."""
    frozen_steps: int = 0
    """Steps since."""
    clips_for_others: list[tuple[CallSite | None, BackwardPass, int]] = field(default_factory=list)
    """Calls that clipped this optimizer's gradients before an unclipped step of another one (its index)."""
    through: list[tuple[BackwardPass, int]] = field(default_factory=list)
    """Passes that this optimizer has stepped on and that reached it through weights of another one (its index)."""
    num_looking_ahead: int = 0
    """Backward passes that added to a gradient at other weights."""
    steps_again: int = 0
    """Steps on what the step before has used, at weights that nothing else has moved since."""
    is_successor: bool = False
    """Whether another optimizer was made at the same line before."""
    continues: bool = False
    """Whether it goes on with the weights as another optimizer, made at the same line, has left them."""
    after_step: tuple[int, torch.Tensor | None] = (0, None)
    """Version counter of a weight after the latest step, and its elements once they may tell of a mistake."""
    terms_again: int = 0
    """Steps on a loss of which a term was a loss that this optimizer had stepped on."""
    num_compared: int = 0
    """Times that gradients of another optimizer's loss were compared with what was added to them."""
    num_opposed: int = 0
    """Times that a backward pass added the opposite of what it found there of another optimizer's."""
    other_optimizers: list[str] = field(default_factory=list)
    """Optimizers that were not passed to the watch and move the same parameters, with call sites."""

    # The loss scaler.
    stage: str = "ready"
    """The scaler's stage for this optimizer: ready, unscaled or stepped."""
    num_scale_calls: int = 0
    """Calls of `scaler.scale` up to the last step."""
    scaler_step_site: CallSite | None = None
    """Call site of the latest `scaler.step`."""
    early_update_site: CallSite | None = None
    """Call site of a `scaler.update` before a step on what the gradients hold."""
    overflow_abandoned: bool = False
    """Whether gradients that overflowed were dropped without the scaler since its last update."""

    def __post_init__(self, parameter_names: dict[torch.Tensor, str]) -> None:
        self.all_names: dict[int, str] = {}
        """id of a parameter -> its name, of those frozen since too."""
        self.set_parameters(parameter_names)
        self.first_weight_version = self.weight_version
        self.manually_written = any(version != -1 for version in self.seen_versions)

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
        """At a step: which parameters have a gradient, and which require none any more?

        in_backward: a backward pass is running, which counts when it is over.
        """
        self.step_site = site
        if self.num_backwards > self.num_own_seen or self.manually_written or in_backward:
            self.unreached, self.num_own_seen = 0, self.num_backwards
        elif self.fed and num_backwards > self.num_backwards_seen:
            self.unreached += 1
        if not self.fed:
            self.fed = self.num_backwards > 0 or any(p.grad is not None for p in self.params)
        if not self.fed and num_backwards > self.num_backwards_seen:
            self.starved += 1
        self.num_backwards_seen = num_backwards
        if self.empty_steps is not None:
            self.empty_steps = None if any(p.grad is not None for p in self.params) else self.empty_steps + 1
        if self.attempts < EARLY:
            known = {id(p) for p in self.frozen_early}
            self.frozen_early += [p for p in self.params if p.grad is not None and id(p) not in known]
        elif self.frozen_early:
            self.frozen_early, self.frozen_steps = (
                [p for p in self.frozen_early if not p.requires_grad],
                self.frozen_steps + 1,
            )

    def note_groups(self) -> None:
        """Now and then, and at the end: which groups have a learning rate?"""
        rates = ((id(group), group.get("lr", 1.0)) for group in self.optimizer.param_groups)
        self.moving |= {key for key, rate in rates if isinstance(rate, torch.Tensor) or rate != 0}

    def note_targets(self, size: torch.Tensor | None) -> None:
        """At a backward pass: how large were the targets?"""
        if size is not None:
            self.targets.append(size)
            del self.targets[TARGETS:-TARGETS]

    def target_sizes(self) -> tuple[float, float] | None:
        """Mean squares of the targets at the beginning and at the end."""
        if len(self.targets) < 2 * TARGETS:
            return None
        sizes = [float(size) for size in self.targets]
        return median(sizes[:TARGETS]), median(sizes[TARGETS:])

    def note_through(self) -> None:
        """At a step: does its gradient come through weights of other optimizers?"""
        if len(self.through) < MAX_SAMPLED:
            self.through += [(b, v) for b in self.unused for v, u in b.between if u == self.index]

    @property
    def descends(self) -> bool:
        """Whether its steps are known to make small what goes backward."""
        theirs = type(self.optimizer).__module__.startswith("torch.optim")
        turned = self.given_gradients or self.writes_manually
        return theirs and not turned and not any(group.get("maximize") for group in self.optimizer.param_groups)

    @property
    def opponents(self) -> set[int]:
        """Optimizers whose weights its loss depends on, and which did not step on that loss."""
        return {v for b, v in self.through if v not in b.used_by}

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
            return [-1 if g is None else id(g) + g._version for g in grads]
        return [-1 if (g := p.grad) is None else id(g) + g._version for p in self.sample]

    def note_left(self) -> None:
        """After a call that has zeroed the gradients of some parameters: which does it leave?"""
        self.left = {p: id(g) + g._version for p in self.params if (g := p.grad) is not None}

    def note_refilled(self) -> None:
        """After a backward pass: has it added to those?"""
        self.refilled |= {id(p) for p, seen in self.left.items() if (g := p.grad) is None or id(g) + g._version != seen}

    def accept_writes(self) -> None:
        """All writes to the gradients up to now were observed."""
        self.seen_versions = self.versions()

    def detect_writes(self) -> None:
        """Detect writes to the gradients since the last observed call: zeroing, or something else."""
        now = self.versions()
        if self.clipped_by_value:
            self.clipped_by_value, self.seen_versions = False, now
        elif now != self.seen_versions:
            if all(version == -1 for version in now) or (self.accumulated and not self.unused and self.are_zeros()):
                self.zeroed(None)
            else:
                self.manually_written = self.writes_manually = True
                self.detect_manual_factor()
            self.seen_versions = now

    def remember_gradient(self) -> None:
        """Keep a small gradient after a backward pass, to compare with later, unless each update has one pass."""
        several = self.accumulates or self.attempts < EARLY
        self.reference = reference(self.smallest, self.sharded) if several else None

    def detect_manual_factor(self) -> None:
        """The loop wrote to the gradients: did it multiply them by one number?"""
        if self.unused and len(self.manual_factors) < 2 and (factor := manual_factor(self.reference)) is not None:
            self.manual_factors.append(factor)

    def reset(self) -> None:
        """The loop ran unwatched for a while."""
        self.accumulated, self.dropped, self.clips, self.schedule_steps, self.manual_factors = [], [], [], [], []
        self.functional = []
        self.left, self.refilled = {}, set()
        self.unscaled = self.in_closure = self.started = self.has_closure = False
        self.clipped_by_value = self.manually_reduced = self.overflow_abandoned = False
        self.stage, self.reference, self.early_update_site = "ready", None, None
        self.accept_writes()
        self.manually_written = any(version != -1 for version in self.seen_versions)

    def are_zeros(self) -> bool:
        """Whether gradients that were written to are zeros."""
        if self.zero_checks < MAX_ZERO_CHECKS:
            self.zero_checks += 1
            grads = [p.grad for p in self.sample if p.grad is not None]
            self.manually_zeroed = not any(bool(g.any()) for g in grads[-2:])
        return self.manually_zeroed

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
        if len(self.accumulated) != 1 or self.dropped or self.window is not None or not self.fed:
            return False
        b = self.accumulated[0]
        unusual = (
            b.scaled
            or b.fp16
            or b.repeats
            or b.used_by
            or b.used_by_untracked
            or b.between
            or b.advantages
            or b.bootstraps
            or b.comparisons
            or b.stepped_terms
        )
        return not (unusual or b.left_in_eval or any(step.num_unused for step in self.schedule_steps))

    @property
    def skip_site(self) -> CallSite | None:
        """Where the loop left out the step on what the gradients hold, as far as its source shows."""
        unscale = [self.unscale_site] if self.unscaled else []
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
        still = after is None or torch.equal(after, elements(self.sample[0]))
        return self.attempts > 0 and version == self.weight_version and still

    def note_weights(self, b: BackwardPass) -> None:
        """After a backward pass: what the weights are."""
        b.weight_versions[self.index] = self.weight_version
        if self.attempts < moved_weights.UPDATES and not self.sharded:
            b.weights[self.index] = moved_weights.weights_now(self.sample)

    def zeroed(self, site: CallSite | None) -> None:
        """The gradients were set to zero or None."""
        dropped = [(b, site) for b in self.accumulated if not b.used_by and self.unmoved_since(b)]
        if self.in_closure:
            self.dropped_in_closure = dropped
        else:
            self.dropped += dropped
        self.accumulated, self.unscaled, self.clips, self.manual_factors = [], False, [], []
        self.left, self.refilled = {}, set()
        self.manually_written, self.early_update_site = False, None
        self.clips_for_others = []

    def stepped(self) -> None:
        """The optimizer has stepped, or was skipped."""
        if self.left and not self.refilled:  # what the passes before have left is of no parameter that is still trained
            self.accumulated = self.own
        self.left, self.refilled = {}, set()
        for b in self.accumulated:
            b.used_by.add(self.index)
        self.steps_without_drop += not self.dropped
        self.dropped_last, self.clipped_last = len(self.dropped), bool(self.clips)
        self.dropped, self.functional, self.clips, self.schedule_steps, self.manual_factors = [], [], [], [], []
        self.manually_written = self.manually_reduced = False
        self.early_update_site = None
        again = elements(self.sample[0]).clone() if self.steps_again or self.is_successor else None
        self.after_step = self.weight_version, again
        self.accept_writes()


def listed(names: list[str]) -> str:
    more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
    return ", ".join(names[:NAMES]) + more
