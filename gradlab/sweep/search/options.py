"""The fields of `hydra/sweeper=boundary`, `quadtree` and `fix`. Imports neither Hydra nor PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Dict, List, Optional  # noqa: UP035  (omegaconf reads these)

from gradlab.base.option import at_least, one_of, require
from gradlab.sweep.search.judge import CLASSES, JUDGES

PLUGINS = "hydra_plugins.gradlab_sweepers"


@dataclass
class Rounds:
    """Fields of all of them: other axes are given as in any sweep, and jobs are launched round by round."""

    _target_: str = ""
    params: Optional[Dict[str, str]] = None  # noqa: UP006
    """Overrides that a file gives, as those of Hydra's own sweeper."""
    max_runs: Optional[int] = None
    """Runs at most, those of an interrupted sweep included; what is then unknown is reported."""

    def __post_init__(self) -> None:
        require(self.max_runs is None or self.max_runs >= 1, "max_runs", self.max_runs, "null or >= 1")


@dataclass
class BoundaryOption(Rounds):
    """The last value of a field with which runs are stable, for each point of the other axes and each seed."""

    _target_: str = f"{PLUGINS}.boundary.BoundarySweeper"
    field: str = "optimizer.lr"
    """Any numeric field."""
    edge: str = "largest"
    """largest or smallest stable value."""
    low: Optional[float] = None
    """Smallest value to try; null: found by doubling, from the composed value of the field."""
    high: Optional[float] = None
    """Largest value to try; null: found by doubling."""
    tolerance: float = 1.1
    """Known to this factor; with scale=linear to this difference."""
    scale: str = "log"
    """log or linear."""
    points_per_round: int = 1
    """Values a round for each point and seed; more are worth it where the launcher runs many at once."""
    doublings: int = 5
    """How often the step from the first value is doubled where no bound is given: factors 2, 4, 16, 256, 65536."""
    checks: int = 2
    """No part of the range wider than 1/(checks + 1) of it stays untried, so that a second edge is noticed; 0: none."""
    seeds: Optional[List[int]] = None  # noqa: UP006
    """An edge for each; null: those of seed=..."""
    judge: str = "stable"
    """stable: completed and nothing lost. learns: also healthy, and has learnt by its diagnosis."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("edge", self.edge, ("largest", "smallest"))
        one_of("scale", self.scale, ("log", "linear"))
        one_of("judge", self.judge, tuple(JUDGES))
        log = self.scale == "log"
        least = 1.0001 if log else 0
        fits = isfinite(self.tolerance) and (self.tolerance >= least if log else self.tolerance > 0)
        require(fits, "tolerance", self.tolerance, f">= {least}, a factor" if log else "> 0, a difference")
        for name in ("low", "high"):
            bound = getattr(self, name)
            fits = bound is None or (isfinite(bound) and (bound > 0 or not log))
            require(fits, name, bound, "null or > 0" if log else "null or finite")
        if self.low is not None and self.high is not None:
            require(self.low < self.high, "low", self.low, f"less than high ({self.high})")
        at_least(self, points_per_round=1)
        require(0 <= self.doublings <= 10, "doublings", self.doublings, "in [0, 10]")
        require(0 <= self.checks <= 1000, "checks", self.checks, "in [0, 1000]")
        require(self.seeds is None or len(set(self.seeds)) == len(self.seeds) > 0, "seeds", self.seeds, "distinct")


@dataclass
class QuadtreeOption(Rounds):
    """A map over two fields that is refined where neighbouring runs end differently."""

    _target_: str = f"{PLUGINS}.quadtree.QuadtreeSweeper"
    x: str = "optimizer.lr:1e-4:1"
    """field:low:high, or field:low:high:linear."""
    y: str = "clip.max_norm:1e-3:100"
    """As x."""
    coarse: int = 16
    """Cells per side that are all tried."""
    resolution: int = 256
    """Cells per side at the boundary: coarse times a power of two."""
    checks: int = 50
    """Runs at places that were skipped, drawn at random, to measure how often the map is wrong; 0: none."""
    judge: str = "stable"
    """What has to agree: stable, learns, or the verdict."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("judge", self.judge, tuple(CLASSES))
        require(1 <= self.coarse <= 1024, "coarse", self.coarse, "in [1, 1024]")
        ratio, rest = divmod(self.resolution, self.coarse)
        fits = rest == 0 and ratio > 0 and ratio & (ratio - 1) == 0 and self.resolution <= 4096
        allowed = f"coarse ({self.coarse}) times a power of two, and at most 4096"
        require(fits, "resolution", self.resolution, allowed)
        at_least(self, checks=0)


@dataclass
class FixOption(Rounds):
    """The smallest change that cures a failed run: what `python -m gradlab.fix` runs."""

    _target_: str = f"{PLUGINS}.fix.FixSweeper"
    seconds: Optional[float] = None
    """No further round begins after so long."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.seconds is None or self.seconds > 0, "seconds", self.seconds, "null or > 0")
