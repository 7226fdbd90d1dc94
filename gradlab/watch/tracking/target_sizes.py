"""How large the targets of regressions are at the beginning of a loop, and at its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

import torch

PASSES = 3
"""Passes whose targets are compared with those of as many others."""


@dataclass
class TargetSizes:
    """Keeps the mean squares of the targets of the first passes, and of the latest."""

    sizes: list[torch.Tensor] = field(default_factory=list)

    def note(self, size: torch.Tensor | None) -> None:
        """At a backward pass."""
        if size is not None:
            self.sizes.append(size)
            del self.sizes[PASSES:-PASSES]

    def ends(self) -> tuple[float, float] | None:
        """Mean squares at the beginning and at the end; None of too few passes."""
        if len(self.sizes) < 2 * PASSES:
            return None
        sizes = [float(size) for size in self.sizes]
        return median(sizes[:PASSES]), median(sizes[PASSES:])
