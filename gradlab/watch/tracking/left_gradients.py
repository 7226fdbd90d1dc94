"""Gradients that were left when others of the same optimizer were zeroed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch


def version(gradient: torch.Tensor) -> int:
    """A number that another gradient, or one that was written to, does not have."""
    return id(gradient) + gradient._version


@dataclass
class LeftGradients:
    """Since the last step."""

    versions: dict[torch.Tensor, int] = field(default_factory=dict)
    """Parameter -> version of its gradient."""
    refilled: set[int] = field(default_factory=set)
    """ids of those that a backward pass has added to since."""

    def note(self, params: Iterable[torch.Tensor]) -> None:
        """After a call that has zeroed the gradients of some parameters."""
        self.versions = {p: version(g) for p in params if (g := p.grad) is not None}

    def note_refilled(self) -> None:
        """After a backward pass."""
        self.refilled |= {id(p) for p, seen in self.versions.items() if (g := p.grad) is None or version(g) != seen}

    def forget(self) -> None:
        self.versions, self.refilled = {}, set()
