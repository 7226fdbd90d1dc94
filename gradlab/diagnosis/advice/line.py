"""One line of advice, from what a run measured."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Advice:
    """One line: what to do, and why."""

    about: str
    """clip, lr or accumulation."""
    says: str
    override: str | None
    """Overrides to paste after `python -m gradlab`; None where too little was measured."""
    rests_on: str
    """The measurement."""
    numbers: dict[str, Any] = field(default_factory=dict)


def two_digits(value: float, up: bool = True) -> float:
    """Rounded to two significant digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    digits = math.ceil(value / unit - 1e-9) if up else round(value / unit)
    return float(f"{digits * unit:.2g}")
