"""Whether losses rise, and how far they will fall: pure functions of numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from gradlab.diagnosis.series import median


def rising(losses: Sequence[float], reference: float, factor: float) -> bool:
    """Whether a few losses end at `factor` times the reference, and rise, or have been that high for a quarter of them.

    They rise if the last quarter, three at least, are above all before. Of 12 losses the last three are the largest
    by chance once in 220 runs, whatever their distribution; of fewer each of the three must be as high. Or all of
    those are over the square of the factor.
    """
    late = max(3, len(losses) // 4)
    if len(losses) < late + 2:
        return False
    before, now = losses[:-late], losses[-late:]
    usual = median(sorted(before))
    least = (factor - 1) * max(abs(reference), 1.4826 * median(sorted(abs(v - usual) for v in before)))
    if min(now) - reference > (factor**2 - 1) * abs(reference) > 0:
        return True
    if len(losses) < 12:
        return min(now) > max(before) and min(now) - reference >= least
    rises = min(now) > max(before) and median(sorted(now[-3:])) - reference >= least
    first = max(reference, median(sorted(losses[:3])))
    return rises or (late >= 5 and min(now) - first > (factor - 1) * abs(first))


EVALUATIONS = 5
"""Evaluations from which on their course says something."""


def falls_to_the_last(losses: Sequence[float]) -> bool:
    """Whether evaluations fall nearly each time, and the last is the lowest."""
    falls = [after < before for before, after in pairwise(losses)]
    return len(losses) >= EVALUATIONS and sum(falls) >= 0.9 * len(falls) and losses[-1] == min(losses)


def extrapolated(sixths: Sequence[float], error: float) -> float | None:
    """The loss after as many updates again, from the means of six equal parts of a run; None where it does not fall.

    The fall is taken to slow down from sixth to sixth as it did from the second one on: measured over two sixths at a
    time, since that of one may be noise. Where the last one fell by more than noise explains, it alone counts.

    error: standard error of each mean.
    """
    fall, before = sixths[4] - sixths[5], sixths[3] - sixths[4]
    if not fall > 3 * error:
        return None
    slows = min(fall / before, 1.0) if before > 0 else 1.0
    late, early = sixths[3] - sixths[5], sixths[1] - sixths[3]
    if 0 < late < early:
        usual = (late / early) ** 0.5
        smooth = late * usual / (1 + usual)
        if fall - smooth <= 2 * 2**0.5 * error:
            fall, slows = smooth, usual
    return sixths[5] - fall * math.fsum(slows**i for i in range(1, 7))
