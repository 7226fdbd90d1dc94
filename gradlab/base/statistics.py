"""Statistics of a few numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence


def quantile(values: Sequence[float], q: float) -> float:
    """Linear between order statistics, as NumPy's; NaN of none."""
    if not values:
        return math.nan
    ordered, at = sorted(values), q * (len(values) - 1)
    low, high = ordered[math.floor(at)], ordered[math.ceil(at)]
    return low if low == high else low + (high - low) * (at - math.floor(at))
