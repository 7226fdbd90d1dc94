"""Curves in a terminal: 2 x 4 dots a character. Plain values in, characters and the names of their colours out.

A column of dots holds every value that falls into it, from its least to its largest, so that no spike of a long run is
lost; what is not finite is a gap and is marked above.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bits of a braille character, by column and row."""
LABEL = 10
"""Characters of the numbers beside a plot."""
Cell = tuple[str, str]
"""A character and the name of its colour."""


@dataclass
class Plot:
    """One chart over the updates of a run."""

    title: str
    xs: Sequence[float]
    ys: Sequence[float]
    log: bool = False
    level: float | None = None
    """Drawn across, where it is within sight."""
    points: Sequence[tuple[float, float]] = ()
    """Single values, such as those of evaluations."""
    marks: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Character -> where it stands above the curve."""
    base: float = 10.0
    """Of the logarithm."""


def draw(plot: Plot, width: int, height: int, span: tuple[float, float], ascii: bool = False) -> list[list[Cell]]:
    """Lines of width characters: one a kind of marks, then `height` lines with numbers beside them.

    span: the first and last x.
    """
    columns, rows = max(width - LABEL - 1, 4), max(height, 2)
    scales = Scales(span, limits(plot), columns * 2, rows * 4, plot.log)
    dots = [[0] * columns for _ in range(rows)]
    for at, upper, lower in strokes(plot, scales):
        for dot in range(upper, lower + 1):
            dots[dot // 4][at // 2] |= DOTS[at % 2][dot % 4]
    grid: list[list[Cell]] = [[(shown(bits, ascii), "curve") if bits else (" ", "") for bits in row] for row in dots]
    if plot.level is not None and (y := scales.row(plot.level)) is not None:
        row = grid[y // 4]
        row[:] = [cell if cell[0] != " " else ("-" if ascii else "╌", "level") for cell in row]
    for x, value in plot.points:
        if (y := scales.row(value)) is not None:
            grid[y // 4][scales.column(x) // 2] = ("o" if ascii else "●", "point")
    lines = []
    for mark, places in plot.marks.items():
        seen = {scales.column(x) // 2 for x in places}
        lines += [[(mark, "mark") if column in seen else (" ", "") for column in range(columns)]] * bool(seen)
    numbers = [""] * len(lines) + [number(scales.high, plot), *[""] * (rows - 2), number(scales.low, plot)]
    bar = "|" if ascii else "│"
    return [
        [*((c, "label") for c in f"{text:>{LABEL}}{bar if i >= len(lines) else ' '}"), *line]
        for i, (text, line) in enumerate(zip(numbers, [*lines, *grid], strict=True))
    ]


def shown(bits: int, ascii: bool) -> str:
    """A braille character; without Unicode, whether its upper or lower half has dots."""
    if not ascii:
        return chr(0x2800 + bits)
    upper, lower = bits & 0b00011011, bits & 0b11100100
    return ":" if upper and lower else "'" if upper else "."


def visible(plot: Plot, value: float) -> bool:
    return math.isfinite(value) and (value > 0 or not plot.log)


def limits(plot: Plot) -> tuple[float, float]:
    """The least and the largest value, a little apart at least; a level counts where it is near."""
    seen = [v for v in [*plot.ys, *(v for _, v in plot.points)] if visible(plot, v)]
    low, high = min(seen, default=1.0), max(seen, default=1.0)
    if plot.level is not None and visible(plot, plot.level) and seen:
        near = (low / 100, high * 100) if plot.log else (2 * low - high, 2 * high - low)
        if near[0] <= plot.level <= near[1]:
            low, high = min(low, plot.level), max(high, plot.level)
    if low == high == 0:
        return 0.0, 1.0
    if low == high:
        apart = low * 0.5 if plot.log else abs(low) * 0.1 or 1.0
        low, high = low - apart, high + apart
    return low, high


@dataclass
class Scales:
    """From values to dots."""

    span: tuple[float, float]
    limits: tuple[float, float]
    columns: int
    rows: int
    log: bool

    @property
    def low(self) -> float:
        return self.limits[0]

    @property
    def high(self) -> float:
        return self.limits[1]

    def column(self, x: float) -> int:
        first, last = self.span
        part = (x - first) / (last - first) if last > first else 0.5
        return min(max(int(part * self.columns), 0), self.columns - 1)

    def row(self, y: float) -> int | None:
        """Counted from above; None out of sight."""
        if not math.isfinite(y) or (self.log and y <= 0):
            return None
        low, high, y = (math.log(v) if self.log else v for v in (self.low, self.high, y))
        part = (high - y) / (high - low) if high > low else 0.5  # logarithms of neighbours may be equal
        return min(int(part * self.rows), self.rows - 1) if -1e-9 <= part <= 1 + 1e-9 else None


def strokes(plot: Plot, scales: Scales) -> list[tuple[int, int, int]]:
    """Columns of dots with their upper and lower ends, joined where a curve continues."""
    found: dict[int, tuple[int, int]] = {}
    before: tuple[int, int] | None = None
    for x, y in zip(plot.xs, plot.ys, strict=True):
        row = scales.row(y)
        if row is None:
            before = None
            continue
        column = scales.column(x)
        parts = [(column, row, row)] if before is None else joined(*before, column, row)
        for at, upper, lower in parts:
            known = found.get(at, (upper, lower))
            found[at] = min(known[0], upper), max(known[1], lower)
        before = column, row
    return [(column, *ends) for column, ends in found.items()]


def joined(x0: int, y0: int, x1: int, y1: int) -> list[tuple[int, int, int]]:
    """The line from one dot to another, as upright strokes."""
    if x0 == x1:
        return [(x0, min(y0, y1), max(y0, y1))]
    parts = []
    steps = abs(x1 - x0)
    for i in range(steps + 1):
        ends = (y0 + (y1 - y0) * max(i - 0.5, 0) / steps, y0 + (y1 - y0) * min(i + 0.5, steps) / steps)
        parts.append((x0 + (i if x1 > x0 else -i), round(min(ends)), round(max(ends))))
    return parts


def number(value: float, plot: Plot) -> str:
    """A value beside a plot; a power of two as such where the scale is in them."""
    if plot.base == 2 and value > 0 and (power := math.log2(value)).is_integer() and abs(power) > 6:
        return f"2^{power:.0f}"
    return f"{value:.3g}"
