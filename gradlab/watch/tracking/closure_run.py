"""The closure of a step, which computes gradients while the step runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradlab.watch.call_site import CallSite
from gradlab.watch.events import BackwardPass


@dataclass
class ClosureRun:
    """Of the latest step."""

    given: bool = False
    """Whether it was given a closure."""
    running: bool = False
    """Whether it runs, and calls a closure."""
    passes: list[BackwardPass] = field(default_factory=list)
    """Backward passes in it."""
    dropped: list[tuple[BackwardPass, CallSite | None]] = field(default_factory=list)
    """Backward passes that were zeroed after the latest of them, and where."""
