"""The values at which an edge along one field is searched.

They lie on a lattice whose step is the tolerance, so that the search is one over whole numbers: position p stands for
origin * step^p, or origin + step * p. Positions grow from where runs are expected to be stable to where they are not:
for the smallest stable value the step goes downwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log

from gradlab.base.option import Invalid, require
from gradlab.sweep.search.options import BoundaryOption


@dataclass(frozen=True)
class Lattice:
    """The lattice of values, and how it is searched."""

    origin: float
    step: float
    """A factor, or with `linear` a difference."""
    linear: bool = False
    whole: bool = False
    """Whether the field takes whole numbers only."""
    first: int | None = None
    """The position of the bound on the stable side, if one is given."""
    last: int | None = None
    points: int = 1
    doublings: int = 5
    checks: int = 2

    def value(self, position: float) -> float:
        """What the field is set to."""
        exact = self.origin + self.step * position if self.linear else self.origin * self.step**position
        return round(exact) if self.whole else float(f"{exact:.{12 if self.linear else 7}g}")

    @property
    def size(self) -> float:
        """The step in the unit in which edges are compared: the field's own, or the logarithm of a factor."""
        return self.step if self.linear else log(self.step)

    @property
    def offsets(self) -> list[int]:
        """Distances from the origin at which values are tried where there is no bound."""
        octave = 1 if self.linear else max(1, round(log(2) / abs(self.size)))
        return [octave << i for i in range(self.doublings)]


def lattice(option: BoundaryOption, start: float | None, whole: bool) -> Lattice:
    """The lattice that the options ask for. start: the field's value in the composed configuration."""
    linear, down = option.scale == "linear", option.edge == "smallest"
    safe, unsafe = (option.high, option.low) if down else (option.low, option.high)
    step = option.tolerance
    if whole:
        for name in ("low", "high"):
            bound = getattr(option, name)
            require(bound is None or bound == round(bound), f"hydra.sweeper.{name}", bound, f"whole: {option.field} is")
        require(not linear or step == round(step), "hydra.sweeper.tolerance", step, f"whole: {option.field} is")
    first = last = None
    if safe is not None and unsafe is not None:
        span = abs(unsafe - safe) if linear else abs(log(unsafe / safe))
        cells = max(1, ceil(span / (step if linear else log(step)) - 1e-9))
        origin, first, last = safe, 0, cells
        step = span / cells if linear else (max(safe, unsafe) / min(safe, unsafe)) ** (1 / cells)
    elif safe is not None:
        origin, first = safe, 0
    elif unsafe is not None:
        origin, last = unsafe, 0
    else:
        if start is None or (not linear and start <= 0):
            given = "null" if start is None else start
            reason = f"must be given, or high: {option.field} is {given} here, which is no value to begin with"
            raise Invalid("hydra.sweeper.low", "null", reason)
        origin = start
    step = (-step if linear else 1 / step) if down else step
    return Lattice(origin, step, linear, whole, first, last, option.points_per_round, option.doublings, option.checks)
