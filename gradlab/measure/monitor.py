"""What is recorded of every layer, besides the line of metrics of every update."""

from __future__ import annotations

from dataclasses import dataclass

from gradlab.base.option import at_least, option


@dataclass
class Monitor:
    """Base of the options: what is recorded in which update. Updates are counted from 1."""

    cost = False
    """Whether the cost of forward and backward passes is measured."""

    @property
    def layers(self) -> bool:
        """Whether layers.jsonl is written."""
        return False

    def norms(self, update: int) -> bool:
        """Whether to record the gradient norm of each parameter, which clipping has measured anyway."""
        return False

    def steps(self, update: int) -> bool:
        """Whether to record the change of each parameter, which takes a copy of the weights."""
        return False

    def elements(self, update: int) -> bool:
        """Whether to record statistics of the elements of gradients and activations."""
        return False


@option("monitor", "none")
@dataclass
class NoMonitor(Monitor):
    """Only the line of metrics of every update."""


@option("monitor", "summary")
@dataclass
class Summary(Monitor):
    """The gradient norm of every parameter, which clipping measures anyway; less often how far each has moved."""

    every: int = 5
    """Updates between two records of the gradients' norms."""
    step_every: int = 50
    """Updates between two measurements of how far the weights move; 0: never."""
    cost: bool = False
    """Whether to measure the cost of forward and backward passes: the bytes of their tensors in the first update, their
    time in later records."""

    def __post_init__(self) -> None:
        at_least(self, every=1, step_every=0)

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
    """Also the mean, spread, largest and non-finite elements of every gradient, and the activations of every module."""

    step_every: int = 5
    cost: bool = True

    def elements(self, update: int) -> bool:
        return self.steps(update)
