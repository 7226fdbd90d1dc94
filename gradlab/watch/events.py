"""Events that the rules judge: backward passes, clip calls and steps of learning rate schedules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import GeneratorType
from typing import Any

import torch

from gradlab.watch.call_site import CallPath, CallSite
from gradlab.watch.graphs.loss_graph import LossWeight
from gradlab.watch.tracking.moved_weights import Weights

Violation = tuple[str, "CallSite | None", str] | tuple[str, "CallSite | None", str, int]
"""What a rule yields: the name of a mistake in `gradlab.codes`, its call site, and details; the update from which it
held, if that is not the one under way."""


@dataclass
class Seen:
    """What was seen of the loop as a whole: why nothing was measured, where nothing was."""

    num_backwards: int = 0
    """Backward passes, of whatever they reach."""
    other_thread: str = ""
    """Name of a thread whose calls were not observed."""
    internal_error: str = ""
    """What ended the watch, if it was a mistake of its own."""
    switched_off: dict[str, str] = field(default_factory=dict)
    """Name of a reader -> the mistake of its own that ended it; the others go on."""
    leaf_site: CallSite | None = None
    """Call site of a backward pass of a tensor that no operation has made."""
    reverses: bool = False
    """Whether a function of the user's turns gradients round."""
    regressed: set[int] = field(default_factory=set)
    """ids of the last weights of values that are trained by a regression."""
    contrasted: set[int] = field(default_factory=set)
    """ids of the last weights of outputs that a loss takes from others of the same weights, as energies."""
    stray_clips: list[tuple[CallSite | None, str]] = field(default_factory=list)
    """Calls since the latest backward pass that clip none of the gradients there are, or only used ones; and why."""
    freezes: list[tuple[CallSite | None, set[int]]] = field(default_factory=list)
    """Calls of `requires_grad_(False)` of modules during the first updates, and ids of their parameters."""

    def ask(self, call: Callable[..., Any], *args: Any, default: Any = None) -> Any:
        """Call a reader, a function or the method of an object. It is not called again once it has raised."""
        if self.switched_off and self.is_off(getattr(call, "__self__", call)):
            return default
        try:
            result = call(*args)
            return list(result) if type(result) is GeneratorType else result
        except Exception as error:
            self.switch_off(call, error)
            return default

    def switch_off(self, call: Callable[..., Any], error: Exception) -> None:
        """A reader, a function or the method of an object, has raised."""
        self.switched_off[name_of(getattr(call, "__self__", call))] = f"{type(error).__name__}: {error}"

    def is_off(self, reader: Any) -> bool:
        return name_of(reader) in self.switched_off


def name_of(reader: Any) -> str:
    return str(getattr(reader, "__name__", type(reader).__name__))


@dataclass
class Mode:
    """Training mode of a model."""

    trained: bool = False
    """Whether it has run in training mode, with gradients."""
    evaluated: bool = False
    """Whether it has run in eval(), without gradients, since then."""
    site: CallSite | None = None
    """Call site of its latest `eval()`."""
    inside: int = -1
    """Backward passes before it ran in eval(), with gradients, in the function that had called it; -1 if it did not."""
    untrained: bool = False
    """Whether `eval()` was the latest call that set its mode, and it had not been trained yet."""
    num_ungraded: int = 0
    """Times that it ran in training mode without gradients: nobody evaluates it so."""
    num_in_eval: int = 0
    """Times that it ran in eval(), with gradients."""
    updates: int = 0
    """Updates in a row in eval(), after an evaluation."""
    matters: bool | None = None
    """Whether its layers depend on it; None until that is asked."""


@dataclass
class ForwardPasses:
    """Forward passes since the latest backward pass."""

    count: int = 0
    fp16: bool = False
    """Whether the latest ran under fp16 autocast."""
    synced: bool | None = None
    """Whether DDP prepared to average gradients in the latest; None without DDP."""
    site: CallSite | None = None
    """Call site of the latest; recorded during the first updates only."""
    left_in_eval: set[int] = field(default_factory=set)
    """Models, by position, that were evaluated since they were trained, and ran in eval() still."""
    in_training: set[int] = field(default_factory=set)
    """Models, by position, that ran in training mode."""
    bypassed_ddp: CallSite | None = None
    """Call site of the module inside DDP, called in place of DDP."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class BackwardPass:
    """One backward pass that added to an optimizer's gradients."""

    site: CallSite | None
    loss: Any
    """The loss without the loss scale: a float, or a () tensor on a device; None if it is not one number."""
    weight: LossWeight
    scaled: bool
    """Whether the loss was multiplied by the loss scale."""
    plain: bool
    """Whether it certainly was not, nor any term of it."""
    fp16: bool
    """Whether the forward pass before it ran in fp16."""
    num_forwards: int
    """Forward passes of the model since the previous backward pass."""
    forward_site: CallSite | None
    """Call site of the latest of them, if it was recorded."""
    synced: bool | None
    """Whether DDP averages the gradients over ranks after it; None without DDP."""
    num_scaler_updates: int
    """Calls of `scaler.update` before it."""
    dtypes: set[torch.dtype] | None
    """Floating point types in its graph; None if unknown."""
    path: CallPath = ()
    """The calls that have led to it."""
    graph_token: Any = None
    """Weak reference that is dead once its graph is freed."""
    repeats: list[BackwardPass] = field(default_factory=list)
    """Earlier backward passes of the same loss, whole like this one."""
    extends: list[BackwardPass] = field(default_factory=list)
    """Earlier backward passes of terms of this loss."""
    stepped_terms: set[int] = field(default_factory=set)
    """Indices of the optimizers that have stepped on a term of this loss, as of a sum that grows."""
    advantages: dict[int, CallSite | None] = field(default_factory=dict)
    """ids of the last weights of values whose error multiplies a policy's logarithm, and gets a gradient; its line."""
    is_policy: bool = False
    """Whether its loss multiplies logarithms by constants of which some are negative."""
    bootstraps: dict[int, CallSite | None] = field(default_factory=dict)
    """ids of the last weights of values that get a gradient as a part of their own target; its line."""
    comparisons: list[tuple[set[int], set[int], CallSite | None]] = field(default_factory=list)
    """Of a loss that compares outputs of networks alone: ids of the weights of both sides, and the line of each."""
    between: dict[tuple[int, int], CallSite | None] = field(default_factory=dict)
    """(V, U): weights of optimizer V lie between the loss and weights of optimizer U; where they are given these."""
    used_by_untracked: list[str] = field(default_factory=list)
    """Optimizers that were not passed to the watch and have stepped on it, with call sites."""
    left_in_eval: set[int] = field(default_factory=set)
    """Models, by position, that were evaluated and ran before it in eval() still."""
    weight_versions: dict[int, int] = field(default_factory=dict)
    """Optimizer index -> version counter of one of its parameters when this pass ran."""
    weights: dict[int, Weights] = field(default_factory=dict)
    """Optimizer index -> some elements of its weights and gradients after this pass; of the first updates only."""
    used_by: set[int] = field(default_factory=set)
    """Indices of the optimizers that have stepped on it."""

    @property
    def is_unusual(self) -> bool:
        """Whether a rule about steps may have something to say of it."""
        of_precision = self.scaled or self.fp16
        of_steps = self.used_by or self.used_by_untracked or self.stepped_terms or self.repeats
        of_losses = self.between or self.advantages or self.bootstraps or self.comparisons
        return bool(of_precision or of_steps or of_losses or self.left_in_eval)


@dataclass
class ThrownPasses:
    """Backward passes that are zeroed in one update after the other, of other lines than those that are used."""

    latest: list[tuple[BackwardPass, CallSite | None]] = field(default_factory=list)
    """Those of the update before, and where they were zeroed."""
    updates: int = 0
    """Updates in a row with any."""
    steps_before: int = 0
    """Steps before which nothing was dropped, at the latest of them."""


@dataclass
class ClipCall:
    """A call that clips gradients."""

    site: CallSite | None
    num_accumulated: int
    """Backward passes in the gradient at the time."""
    handed_from: CallSite | None = None
    """The line that says what is clipped, in a loop of several optimizers."""


@dataclass
class ScheduleStep:
    """A step of a learning rate schedule."""

    schedule: int
    """id() of the schedule."""
    site: CallSite | None
    num_unused: int
    """Backward passes in the gradient at the time that no optimizer has used."""
