"""Numbers in few bytes."""

from __future__ import annotations

import math
from typing import Any


def short(value: Any, digits: int = 4) -> Any:
    """A number in few bytes; what JSON cannot hold as a string, and nothing for what is no number."""
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    value = float(f"{value:.{digits}g}")
    return int(value) if value.is_integer() and abs(value) < 1e15 else value
