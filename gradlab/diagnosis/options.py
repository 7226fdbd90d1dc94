"""The thresholds of the diagnosis."""

from __future__ import annotations

from dataclasses import dataclass

from gradlab.option import option, require


@option("diagnosis", "default")
@dataclass
class Thresholds:
    """What counts as ill."""

    exploding_norm: float = 100.0
    """A gradient norm beyond this is exploding if the loss is lost with it."""
    growth: float = 10.0
    """And it must have grown by this factor over the run's median, or from the very beginning."""
    vanishing_ratio: float = 1000.0
    """Gradient norm of the late layers over that of the early ones."""
    diverged: float = 1.5
    """Final loss over the first: beyond this the run has diverged."""
    learning: float = 0.05
    """Smallest relative improvement of the loss that counts as learning."""
    window: int = 20
    """Updates over which a loss is averaged; a shorter run gets no verdict from its losses."""

    def __post_init__(self) -> None:
        for name in ("exploding_norm", "growth", "vanishing_ratio", "diverged", "learning", "window"):
            require(getattr(self, name) > 0, name, getattr(self, name), "> 0")
