"""What an optimizer has to do with other ones of the same loop."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gradlab.watch.call_site import CallSite
from gradlab.watch.events import BackwardPass, Violation

MAX_THROUGH = 16
"""Passes that are kept."""


@dataclass
class OtherOptimizers:
    """Of one optimizer."""

    untracked: list[str] = field(default_factory=list)
    """Optimizers that were not passed to the watch and move the same parameters, with call sites."""
    is_successor: bool = False
    """Whether another optimizer was made at the same line before."""
    continues: bool = False
    """Whether it goes on with the weights as another optimizer, made at the same line, has left them."""
    replaced: bool = False
    """Whether one of many that were made at the same line goes on with its weights: its gradients are those of that."""
    clips: list[tuple[CallSite | None, BackwardPass, int]] = field(default_factory=list)
    """Calls that clipped its gradients before an unclipped step of another one (its index)."""
    through: list[tuple[BackwardPass, int]] = field(default_factory=list)
    """Passes that it has stepped on and that reached it through weights of another one (its index)."""
    parts: list[tuple[set[int], bool, object]] = field(default_factory=list)
    """ids of weights of its own that a loss gave gradients to, alone; whether others lie between; which loss."""
    shared: dict[int, Violation] = field(default_factory=dict)
    """Index of another one that steps on the same gradients of the same weights -> what is said of it."""
    num_compared: int = 0
    """Times that gradients of another one's loss were compared with what was added to them."""
    num_opposed: int = 0
    """Times that a backward pass added the opposite of what it found there of another one's."""

    def note_through(self, index: int, passes: Iterable[BackwardPass]) -> None:
        """At a step of optimizer `index`: does its gradient come through weights of others?"""
        if len(self.through) < MAX_THROUGH:
            self.through += [(b, v) for b in passes for v, u in b.between if u == index]

    @property
    def opposes_itself(self) -> bool:
        """Whether a loss of some of its weights depends on others of its, which get their gradients of another one."""
        pairs = [(one, two) for one in self.parts for two in self.parts]
        return any(
            between and loss is not other and part.isdisjoint(own) for (part, between, loss), (own, _, other) in pairs
        )

    @property
    def opponents(self) -> set[int]:
        """Optimizers whose weights its loss depends on, and which did not step on that loss."""
        return {v for b, v in self.through if v not in b.used_by}
