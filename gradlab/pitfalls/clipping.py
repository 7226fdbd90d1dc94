"""Mistakes in what clipping does, and in when it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradlab.base.option import option, require
from gradlab.pitfalls.base import CLIPPED, UNCLIPPED, Deferred, Pitfall
from gradlab.update.clip import Clipped, NoClip, NormClip, ValueClip

if TYPE_CHECKING:
    from gradlab.update.gradients import Gradients
    from gradlab.update.step import Update

Clipping = Callable[["Gradients"], Clipped]
"""`Update.clip_`."""


@option("pitfall", "no_clip")
@dataclass
class NoClipping(Pitfall):
    """A run that needs clipping has none: one steep update moves the weights to where gradients are steeper still.

    Pitfall 1 of source "GM" in experiments/README.md: the gradients explode, and only the learning rate gets the blame.
    """

    replaces = "clip_"
    needs = (CLIPPED,)

    def wrong(self, update: Update, right: Clipping, gradients: Gradients) -> Clipped:
        return NoClip().clip_(gradients, update.clip_state)


@option("pitfall", "value_clip")
@dataclass
class ValueClipping(Pitfall):
    """Elements are clamped where the whole gradient should be scaled: its direction changes.

    Pitfall 6 of source "GM" in experiments/README.md.
    """

    max_value: float = 0.5
    """Largest magnitude of an element."""

    replaces = "clip_"
    needs = (CLIPPED,)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.max_value > 0, "max_value", self.max_value, "> 0")

    def wrong(self, update: Update, right: Clipping, gradients: Gradients) -> Clipped:
        return ValueClip(self.max_value).clip_(gradients, update.clip_state)


@dataclass
class _OtherNorm(Pitfall):
    """Base: clips the whole gradient at another norm than the run's own."""

    max_norm: float = 1.0
    """Largest L2 norm of the whole gradient."""

    replaces = "clip_"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.max_norm > 0, "max_norm", self.max_norm, "> 0")

    def wrong(self, update: Update, right: Clipping, gradients: Gradients) -> Clipped:
        return NormClip(self.max_norm).clip_(gradients, update.clip_state)


@option("pitfall", "needless_clip")
@dataclass
class NeedlessClip(_OtherNorm):
    """A run that is healthy without clipping, such as a ResNet's, is clipped: its steps become shorter.

    Pitfall 7 of source "GM" in experiments/README.md.
    """

    needs = (UNCLIPPED,)


@option("pitfall", "clip_too_tight")
@dataclass
class ClipTooTight(_OtherNorm):
    """max_norm is far below the usual norm: nearly every gradient is cut to the same length.

    The size of the gradient no longer matters. Pitfall 10 of source "GM" in experiments/README.md.
    """

    max_norm: float = 0.01


@option("pitfall", "clip_after_step")
@dataclass
class ClipAfterStep(Pitfall):
    """Clipping runs after optimizer.step(): the weights have already moved by the whole gradient.

    Pitfall 3 of source "GM" in experiments/README.md.
    """

    replaces = "clip_"
    needs = (CLIPPED,)

    def prepare(self, update: Update) -> None:
        self.later = Deferred(update.optimizer.register_step_post_hook)

    def wrong(self, update: Update, right: Clipping, gradients: Gradients) -> Clipped:
        self.later.work = lambda: right(gradients)
        return NoClip().clip_(gradients, update.clip_state)


@option("pitfall", "clip_before_backward")
@dataclass
class ClipBeforeBackward(Pitfall):
    """zero_grad, clip, backward, step: there is no gradient to clip yet, and the next one is used whole.

    Often seen in snippets with a wrong order.
    """

    replaces = "clip_"
    needs = (CLIPPED,)

    def prepare(self, update: Update) -> None:
        self.later = Deferred(update.model.register_forward_pre_hook)

    def wrong(self, update: Update, right: Clipping, gradients: Gradients) -> Clipped:
        self.later.work = lambda: right(update.measure())
        return NoClip().clip_(gradients, update.clip_state)
