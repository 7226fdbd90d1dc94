"""What is recorded of every layer, beside the line that every update writes."""

from __future__ import annotations

from dataclasses import dataclass

from gradlab.option import option, require


@dataclass
class Monitor:
    """Base of the options."""

    every = 1

    @property
    def layers(self) -> bool:
        """Whether the gradient norm of each parameter is recorded, in layers.jsonl."""
        return False


@option("monitor", "none")
@dataclass
class NoMonitor(Monitor):
    """Nothing but the line of every update."""


@option("monitor", "summary")
@dataclass
class Summary(Monitor):
    """The gradient norm of every parameter, from the pass that clipping makes."""

    every: int = 5
    """Updates between two records."""

    def __post_init__(self) -> None:
        require(self.every >= 1, "every", self.every, ">= 1")

    @property
    def layers(self) -> bool:
        return True
