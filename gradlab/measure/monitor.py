"""What is recorded of every layer, beside the line that every update writes."""

from __future__ import annotations

from dataclasses import dataclass

from gradlab.base.option import option, require


@dataclass
class Monitor:
    """Base of the options: which update records what. Updates are counted from 1."""

    cost = False
    """Whether the cost of forward and backward passes is measured."""

    @property
    def layers(self) -> bool:
        """Whether anything is recorded, in layers.jsonl."""
        return False

    def norms(self, update: int) -> bool:
        """Whether the gradient norm of each parameter is recorded, which clipping has measured anyway."""
        return False

    def steps(self, update: int) -> bool:
        """Whether the change of each parameter is, which takes a copy of the weights."""
        return False

    def elements(self, update: int) -> bool:
        """Whether the elements of gradients and activations are looked at."""
        return False


@option("monitor", "none")
@dataclass
class NoMonitor(Monitor):
    """Nothing but the line of every update."""


@option("monitor", "summary")
@dataclass
class Summary(Monitor):
    """The gradient norm of every parameter, from the pass that clipping makes; now and then how far each has moved."""

    every: int = 5
    """Updates between two records of the gradients' norms."""
    step_every: int = 50
    """Updates between two looks at how far the weights move; 0: never."""
    cost: bool = False
    """Whether it is measured what forward and backward passes cost: in the first update the bytes of their tensors, in
    the later records their time."""

    def __post_init__(self) -> None:
        require(self.every >= 1, "every", self.every, ">= 1")
        require(self.step_every >= 0, "step_every", self.step_every, ">= 0")

    @property
    def layers(self) -> bool:
        return True

    def norms(self, update: int) -> bool:
        return (update - 1) % self.every == 0 or self.steps(update)

    def steps(self, update: int) -> bool:
        return bool(self.step_every) and (update - 1) % self.step_every == 0


@option("monitor", "full")
@dataclass
class Full(Summary):
    """Of every parameter also the mean, spread, largest and non-finite elements; of every module its activations."""

    step_every: int = 5
    cost: bool = True

    def elements(self, update: int) -> bool:
        return self.steps(update)
