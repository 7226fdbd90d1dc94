"""The effect of one change: paired differences, their interval and a judgement. Numbers in, numbers out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

SEEDS = 3
"""Pairs from which an interval is taken; fewer are judged by LARGE alone."""
SMALL = 0.01
"""Smallest mean difference that counts: of the run's updates, or of the baseline's loss."""
LARGE = 0.1
"""With fewer than SEEDS pairs each must differ by this."""


@dataclass
class Effect:
    """Mean of paired differences, positive where the change is for the better."""

    mean: float
    size: float | None
    """The mean over the standard deviation of the differences; None of fewer than SEEDS pairs."""
    low: float | None
    """95% interval of the mean, by Student's t."""
    high: float | None

    @property
    def direction(self) -> int:
        """1 better, -1 worse, 0 not shown."""
        if self.low is None or self.high is None:
            return 0
        return (self.low > 0 and self.mean >= SMALL) - (self.high < 0 and self.mean <= -SMALL)


def paired(differences: Sequence[float]) -> Effect:
    """Effect of paired differences."""
    mean = statistics.fmean(differences)
    if len(differences) < SEEDS:
        return Effect(mean, None, None, None)
    spread, margin = statistics.stdev(differences), half_width(differences)
    size = mean / spread if spread else math.copysign(math.inf, mean) if mean else 0.0
    return Effect(mean, size, mean - margin, mean + margin)


def half_width(values: Sequence[float]) -> float:
    """Half the width of the 95% confidence interval of the mean of at least two values, by Student's t."""
    from scipy.special import stdtrit

    n = len(values)
    return float(stdtrit(n - 1, 0.975)) * statistics.stdev(values) / math.sqrt(n)


def direction(differences: Sequence[float]) -> int:
    """1 better, -1 worse, 0 not shown: by the interval, or of fewer than SEEDS pairs if every one differs by LARGE."""
    if not differences:
        return 0
    if len(differences) >= SEEDS:
        return paired(differences).direction
    return all(d >= LARGE for d in differences) - all(d <= -LARGE for d in differences)


def judge(
    unhealthy_before: Sequence[bool],
    unhealthy_after: Sequence[bool],
    survived: Sequence[float],
    improved: Sequence[float],
) -> tuple[str, str]:
    """cured, helped, no effect or worse; and why. One entry a seed, except for `improved`, which may be empty.

    survived: difference of the fraction of the run's updates that were reached. improved: fall of the final loss as
    a fraction of the baseline's; empty where losses cannot be compared.
    """
    n = len(unhealthy_before)
    pairs = list(zip(unhealthy_before, unhealthy_after, strict=True))
    fixed, broken = pairs.count((True, False)), pairs.count((False, True))
    if fixed == n:
        return "cured", f"unhealthy without it, healthy with it, in {seeds(n)}"
    if 2 * (fixed - broken) >= n:
        return "helped", f"healthy in {fixed} of {seeds(n)} that are unhealthy without it"
    if 2 * (broken - fixed) >= n:
        return "worse", f"unhealthy in {broken} of {seeds(n)} that are healthy without it"
    for better, worse, differences in (
        ("it survives longer", "it survives less long", survived),
        ("it ends at a lower loss", "it ends at a higher loss", improved),
    ):
        if found := direction(differences):
            return ("helped", better) if found > 0 else ("worse", worse)
    least = f"{SMALL:.0%} in the mean with an interval that leaves out 0"
    least = f"{LARGE:.0%}, in one direction, under each seed" if n < SEEDS else least
    what = "neither updates survived nor the final loss differ" if improved else "updates survived do not differ"
    return "no effect", f"{what} by {least}"


def seeds(n: int) -> str:
    return f"{n} seed{'s' * (n != 1)}"


def improvement(before: float, after: float) -> float:
    """Fall of a loss as a fraction of what it was; NaN where either is not finite."""
    return (before - after) / max(abs(before), 1e-12) if math.isfinite(before) and math.isfinite(after) else math.nan
