"""What all pitfalls share: when they apply, and how one replaces a method of `Update`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from gradlab.base.option import OPTIONS, Invalid, require

if TYPE_CHECKING:
    import torch

    from gradlab.update.accumulation import Accumulation
    from gradlab.update.clip import Clip
    from gradlab.update.loss import Loss
    from gradlab.update.precision import PrecisionOption
    from gradlab.update.schedule import Schedule
    from gradlab.update.stats import MicroBatch
    from gradlab.update.step import Update

    Window = Sequence[MicroBatch]
    Backward = Callable[[Window, int, torch.Tensor], torch.Tensor]
    """`Update.backward`: window, i, weight -> sum of losses."""


class Setting(NamedTuple):
    """What decides whether a pitfall applies to a run, and how."""

    accumulation: Accumulation
    loss: Loss
    precision: PrecisionOption
    clip: Clip
    schedule: Schedule
    world_size: int
    steps: int
    """Micro-batches of the first window."""
    micro_batches: int
    """Micro-batches of an epoch, on each rank."""

    @property
    def remainder(self) -> bool:
        """Whether the last window of an epoch is shorter."""
        return not self.accumulation.varies and self.micro_batches % self.steps != 0


class Need(NamedTuple):
    """A condition without which a pitfall has no effect."""

    text: str
    met: Callable[[Setting], bool]


SEVERAL = Need("accumulation.steps > 1", lambda at: at.accumulation.varies or at.steps > 1)
CONSTANT = Need("accumulation.steps that do not vary", lambda at: not at.accumulation.varies)
REMAINDER = Need("an epoch whose micro-batches accumulation.steps does not divide", lambda at: at.remainder)
MEAN = Need("loss.reduction=mean", lambda at: at.loss.reduction == "mean")
SCALED = Need("a loss scale: precision=fp16", lambda at: at.precision.scaled)
CLIPPED = Need("a clip other than none, such as clip=norm", lambda at: name_of("clip", at.clip) != "none")
UNCLIPPED = Need("clip=none, which is right there", lambda at: name_of("clip", at.clip) == "none")
RANKS = Need("several ranks: torchrun --nproc-per-node=2 -m gradlab ...", lambda at: at.world_size > 1)
MOVING = Need("a rate that moves, such as schedule=warmup", lambda at: name_of("schedule", at.schedule) != "constant")


def name_of(group: str, option: Any) -> str:
    """The name by which an option is chosen."""
    return next(name for (g, name), cls in OPTIONS.items() if g == group and cls is type(option))


@dataclass
class Pitfall:
    """Base of the pitfalls. `wrong` gets the update, its correct method, and that method's arguments."""

    measure_every: int = 10
    """Updates between two comparisons with the correct update from the same state; 0: none."""

    replaces: ClassVar[str] = ""
    """Name of the method of `Update` that is replaced."""
    needs: ClassVar[tuple[Need, ...]] = ()

    def __post_init__(self) -> None:
        require(self.measure_every >= 0, "measure_every", self.measure_every, ">= 0")

    def apply(self, update: Update, setting: Setting) -> None:
        """Replace the correct method by the wrong one; raise `Invalid` where that has no effect."""
        for need in self.needs:
            if not need.met(setting):
                raise Invalid("pitfall", name_of("pitfall", self), f"needs {need.text}")
        self.setting = setting
        self.prepare(update)
        setattr(update, self.replaces, partial(self.wrong, update, getattr(update, self.replaces)))

    def prepare(self, update: Update) -> None:
        """Prepare what `wrong` needs."""

    def wrong(self, update: Update, right: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


@dataclass
class WrongBackward(Pitfall):
    """Base of those in the backward pass of one micro-batch: `wrong(update, right, window, i, weight)`."""

    replaces = "backward"


class Deferred:
    """The work of a function, done later by a hook. Work left by a skipped update is dropped."""

    def __init__(self, register: Callable[[Callable[..., None]], Any]) -> None:
        """register: takes the hook, such as `optimizer.register_step_post_hook`."""
        self.work: Callable[[], Any] | None = None
        register(self.run)

    def run(self, *args: Any) -> None:
        work, self.work = self.work, None
        if work is not None:
            work()


def gradients(update: Update) -> list[torch.Tensor]:
    """Every existing p.grad."""
    return [p.grad for p in update.params if p.grad is not None]
