"""How many micro-batches make one update. What the gradient is does not depend on it: see `step.accumulate`."""

from __future__ import annotations

from dataclasses import dataclass

from gradlab.base.option import Invalid, at_least, option


@dataclass
class Accumulation:
    """Base of the options."""

    @property
    def varies(self) -> bool:
        """Whether the steps depend on the update."""
        return False

    def steps_at(self, update: int, batch_size: int, world_size: int) -> int:
        """Micro-batches a rank for the update that follows `update` applied ones."""
        raise NotImplementedError


@option("accumulation", "fixed")
@dataclass
class Fixed(Accumulation):
    """The same number of micro-batches for every update."""

    steps: int = 1
    """Micro-batches an update, on each rank."""

    def __post_init__(self) -> None:
        at_least(self, steps=1)

    def steps_at(self, update: int, batch_size: int, world_size: int) -> int:
        return self.steps


@option("accumulation", "target")
@dataclass
class Target(Accumulation):
    """A target global batch size; the steps follow from the world size and the micro-batch."""

    global_batch_size: int = 256
    """Samples an update over all ranks: a multiple of data.batch_size * world size."""

    def __post_init__(self) -> None:
        at_least(self, global_batch_size=1)

    def steps_at(self, update: int, batch_size: int, world_size: int) -> int:
        unit = batch_size * world_size
        steps, rest = divmod(self.global_batch_size, unit)
        if rest:
            nearest = " or ".join(str(s * unit) for s in (steps, steps + 1) if s)
            allowed = f"must be a multiple of {unit} (data.batch_size {batch_size} x world size {world_size})"
            raise Invalid("global_batch_size", self.global_batch_size, f"{allowed}; nearest: {nearest}")
        return steps


@option("accumulation", "ramp")
@dataclass
class Ramp(Accumulation):
    """Grows linearly from `start` to `end` micro-batches over `updates` updates (a batch-size warm-up)."""

    start: int = 1
    """Micro-batches of the first update."""
    end: int = 8
    """Micro-batches from update `updates` on."""
    updates: int = 1000
    """Length of the ramp in updates."""

    def __post_init__(self) -> None:
        at_least(self, start=1, end=1, updates=1)

    @property
    def varies(self) -> bool:
        return self.start != self.end

    def steps_at(self, update: int, batch_size: int, world_size: int) -> int:
        return self.start + (self.end - self.start) * min(update, self.updates) // self.updates
