"""Maps over two fields, one for each point of the other axes, all refined at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from gradlab.base.option import Invalid, require
from gradlab.sweep.grid.axes import Point, axes, given, label, spelling, without
from gradlab.sweep.search.judge import CLASSES, FinishedJob
from gradlab.sweep.search.options import QuadtreeOption
from gradlab.sweep.search.quadtree import Cell, Corner, ask, leaves, sample, skipped


@dataclass(frozen=True)
class FieldRange:
    """Values of one field, evenly from `low` to `high`."""

    field: str
    low: float
    high: float
    linear: bool = False
    whole: bool = False

    def value(self, fraction: float) -> float:
        """At a fraction of the way."""
        if self.linear:
            exact = self.low + (self.high - self.low) * fraction
        else:
            exact = self.low * (self.high / self.low) ** fraction
        return round(exact) if self.whole else float(f"{exact:.7g}")


def parsed(name: str, text: str) -> FieldRange:
    """`field:low:high` or `field:low:high:linear`."""
    where, allowed = f"hydra.sweeper.{name}", "must be field:low:high, or field:low:high:linear, as optimizer.lr:1e-4:1"
    parts = text.split(":")
    if len(parts) not in (3, 4) or not parts[0] or parts[3:] not in ([], ["linear"], ["log"]):
        raise Invalid(where, text, allowed)
    try:
        low, high = float(parts[1]), float(parts[2])
    except ValueError:
        raise Invalid(where, text, allowed) from None
    linear = parts[3:] == ["linear"]
    require(isfinite(low) and isfinite(high) and low < high, where, text, "from a smaller to a larger number")
    require(linear or low > 0, where, text, "above 0 on a log scale; or end in :linear")
    return FieldRange(parts[0], low, high, linear)


def whole_fields(option: QuadtreeOption, composed: Callable[[str], Any]) -> set[str]:
    """Which of the two fields take whole numbers."""
    values = {name: composed(name) for name in (option.x.split(":")[0], option.y.split(":")[0])}
    return {name for name, value in values.items() if isinstance(value, int) and not isinstance(value, bool)}


@dataclass
class RefinedMap:
    """One map: a point of the other axes."""

    point: Point
    tried: dict[Corner, Hashable] = field(default_factory=dict)
    jobs: dict[Corner, str] = field(default_factory=dict)
    cells: list[Cell] = field(default_factory=list)
    expected: dict[Corner, Hashable] | None = None
    """Points that were skipped and are checked, with the class that the map gave them; None until it is refined."""
    skipped: int = 0
    """How many points had been skipped then."""

    @property
    def wrong(self) -> list[Corner]:
        """Checked points at which the map was wrong."""
        return [p for p, was in (self.expected or {}).items() if p in self.tried and self.tried[p] != was]

    @property
    def checked(self) -> int:
        return sum(p in self.tried for p in self.expected or {})


class MapSearch:
    """Asks for corners of cells until every boundary has the resolution asked for, then checks skipped points."""

    def __init__(self, option: QuadtreeOption, points: Sequence[Point], whole: set[str] | None = None) -> None:
        self.option = option
        found = [parsed(name, text) for name, text in (("x", option.x), ("y", option.y))]
        if found[0].field == found[1].field:
            raise Invalid("hydra.sweeper.y", option.y, "must be another field than x")
        swept = axes(points)
        for axis in found:
            if axis.field in swept:
                raise Invalid(axis.field, ",".join(swept[axis.field]), "is an axis of the map already")
            rounded = round(axis.low), round(axis.high)
            if axis.field in (whole or set()) and (axis.low, axis.high) != rounded:
                why = "must be whole numbers, as the field's values are"
                raise Invalid(axis.field, f"{axis.low:g}:{axis.high:g}", why)
        self.x, self.y = (FieldRange(a.field, a.low, a.high, a.linear, a.field in (whole or set())) for a in found)
        fixed = dict.fromkeys(without(point, self.x.field, self.y.field) for point in points)
        self.maps = [RefinedMap(point) for point in fixed]
        self.names = list(swept)
        self.fields = [spelling(points[0], axis.field) for axis in found]
        self.asked: list[tuple[RefinedMap, Corner]] = []

    def ask(self) -> list[Point]:
        self.asked = [(one, place) for one in self.maps for place in self.wanted(one)]
        return [self.job(one.point, place) for one, place in self.asked]

    def wanted(self, one: RefinedMap) -> list[Corner]:
        """Corners that are missing; when none is, the points that are checked."""
        o = self.option
        if (places := ask(one.tried, o.resolution, o.coarse)) or one.expected is not None:
            return places
        skips = skipped(one.tried, list(leaves(one.tried, o.resolution, o.coarse)))
        run = {self.values(place) for place in one.tried}
        distinct = {self.values(place): place for place in skips if self.values(place) not in run}.values()
        one.expected = {place: skips[place] for place in sample(list(distinct), o.checks)}
        one.skipped = len(distinct)
        return list(one.expected)

    def values(self, place: Corner) -> tuple[float, float]:
        """What the two fields are set to; whole numbers may be the same at several places."""
        n = self.option.resolution
        return self.x.value(place[0] / n), self.y.value(place[1] / n)

    @property
    def full(self) -> int:
        """Runs of one full grid."""
        n = self.option.resolution
        across, up = (len({axis.value(k / n) for k in range(n + 1)}) for axis in (self.x, self.y))
        return across * up

    def job(self, point: Point, place: Corner) -> Point:
        """Overrides of the run at a point of the grid."""
        values = (f"{name}={value}" for name, value in zip(self.fields, self.values(place), strict=True))
        return (*point, *values, *(() if given(point, "expect") else ("expect=any",)))

    def tell(self, seen: Sequence[FinishedJob]) -> None:
        for (one, place), found in zip(self.asked, seen, strict=False):
            one.tried[place] = CLASSES[self.option.judge](found.diagnosis)
            one.jobs[place] = found.job

    def progress(self) -> str:
        return f"the full grid has {len(self.maps) * self.full}"

    def label(self, point: Point) -> str:
        return label(point, self.names)
