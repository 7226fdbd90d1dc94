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

    terms: list[int] = field(default_factory=list)
    """The same of the numbers of terms of the losses."""

    def note(self, size: torch.Tensor | None, terms: int | None = None) -> None:
        """At a backward pass."""
        if terms is not None:
            self.terms.append(terms)
            del self.terms[PASSES:-PASSES]
        if size is not None:
            self.sizes.append(size)
            del self.sizes[PASSES:-PASSES]

    def more_terms(self) -> tuple[int, int] | None:
        """Numbers of terms at the beginning and at the end, if all of the losses have got more."""
        first, last = self.terms[:PASSES], self.terms[-PASSES:]
        grown = len(self.terms) >= 2 * PASSES and max(first) < min(last)
        return (max(first), min(last)) if grown else None

    def ends(self) -> tuple[float, float] | None:
        """Mean squares at the beginning and at the end; None of too few passes."""
        if len(self.sizes) < 2 * PASSES:
            return None
        sizes = [float(size) for size in self.sizes]
        return median(sizes[:PASSES]), median(sizes[PASSES:])
