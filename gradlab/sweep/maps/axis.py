"""The axes of a map: which fields of the sweep, and the positions of their values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradlab.base.option import Invalid
from gradlab.sweep.results import REPEATS

Row = dict[str, Any]


@dataclass(frozen=True)
class Axis:
    """One field of a sweep: its values in order; categories in that of the sweep."""

    name: str
    values: tuple[Any, ...]

    @property
    def numeric(self) -> bool:
        return bool(self.values) and all(is_number(v) for v in self.values)

    @property
    def log(self) -> bool:
        """Whether its values are spread over orders of magnitude."""
        return self.numeric and self.values[0] > 0 and self.values[-1] / self.values[0] >= 8

    @property
    def places(self) -> np.ndarray:
        """(n,): positions of its values on the axis' own scale."""
        if not self.numeric:
            return np.arange(len(self.values), dtype=float)
        values = np.array(self.values, dtype=float)
        return np.log10(values) if self.log else values

    @property
    def labels(self) -> list[str]:
        return [label(v) for v in self.values]


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def label(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def axis_of(rows: Sequence[Row], name: str) -> Axis:
    found = list(dict.fromkeys(row.get(name) for row in rows))
    if all(is_number(v) for v in found):
        found.sort()
    return Axis(name, tuple(found))


def swept_fields(rows: Sequence[Row]) -> list[str]:
    """Columns between those that every sweep has: the swept fields (see `results.read`)."""
    names = list(rows[0])
    return names[names.index("exit_code") + 1 : names.index("loss/initial")]


def choose_axes(rows: Sequence[Row], x: str | None = None, y: str | None = None) -> tuple[str, str | None]:
    """The fields of a map: those asked for, else the rate and the field of the most values, numeric ones first."""
    names = swept_fields(rows)
    for flag, name in (("--x", x), ("--y", y)):
        if name is not None and name not in names:
            raise Invalid(flag, name, f"was not swept; there are {', '.join(names) or 'no swept fields'}")
    if x is not None and x == y:
        raise Invalid("--y", y, "must be another field than --x")
    axes = [axis_of(rows, name) for name in names if name not in (*REPEATS, x, y)]
    axes.sort(key=lambda a: (not a.numeric, a.name != "optimizer.lr", -len(a.values)))
    left = [a.name for a in axes]
    if x is None:
        if not left:
            raise Invalid("FOLDER", "its sweep", f"must sweep a field other than {', '.join(REPEATS)}")
        x = left.pop(0)
    return x, y or (left[0] if left else None)
