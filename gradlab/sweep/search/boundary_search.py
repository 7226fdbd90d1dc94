"""The search for edges: one line of values for each point of the other axes and each seed, all in the same rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gradlab.base.option import Invalid
from gradlab.sweep.grid.axes import Point, axes, given, label, spelling, without
from gradlab.sweep.search.edge import Edge, ask, edge
from gradlab.sweep.search.judge import JUDGES, FinishedJob
from gradlab.sweep.search.lattice import Lattice, lattice
from gradlab.sweep.search.options import BoundaryOption


@dataclass
class SearchLine:
    """The values of the field at one point of the other axes, under one seed: along it one edge is searched."""

    point: Point
    seed: str | None
    known: dict[int, bool | None] = field(default_factory=dict)
    seen: dict[int, FinishedJob] = field(default_factory=dict)

    @property
    def edge(self) -> Edge:
        return edge(self.known)


class BoundarySearch:
    """Asks for values of one field until every edge is known."""

    def __init__(self, option: BoundaryOption, points: Sequence[Point], start: float | None, whole: bool) -> None:
        """points: overrides of each point. start: the field's composed value. whole: of whole numbers."""
        self.option = option
        swept = axes(points)
        if option.field in swept:
            raise Invalid(option.field, ",".join(swept[option.field]), "is what is searched: give low and high")
        if option.seeds is not None and any(given(point, "seed") for point in points):
            raise Invalid("hydra.sweeper.seeds", list(option.seeds), "is given by seed= too")
        first = given(points[0], option.field)
        self.field = spelling(points[0], option.field)
        self.lattice: Lattice = lattice(option, float(first) if first is not None else start, whole)
        self.points = list(dict.fromkeys(without(point, option.field, "seed") for point in points))
        self.names = [name for name in swept if name != "seed"]
        lines = {}
        for point in points:
            rest = without(point, option.field, "seed")
            for seed in option.seeds if option.seeds is not None else [given(point, "seed")]:
                word = None if seed is None else str(seed)
                lines[rest, word] = SearchLine(rest, word)
        self.lines = list(lines.values())
        self.asked: list[tuple[SearchLine, int]] = []

    def ask(self) -> list[Point]:
        self.asked = [(line, p) for line in self.lines for p in ask(line.known, self.lattice)]
        return [self.job(line, p) for line, p in self.asked]

    def job(self, line: SearchLine, position: int) -> Point:
        """Overrides of a line's run at a position."""
        seed = () if line.seed is None else (f"seed={line.seed}",)
        expect = () if given(line.point, "expect") else ("expect=any",)
        return (*line.point, f"{self.field}={self.lattice.value(position)}", *seed, *expect)

    def tell(self, seen: Sequence[FinishedJob]) -> None:
        for (line, position), job in zip(self.asked, seen, strict=False):
            line.known[position] = JUDGES[self.option.judge](job.diagnosis)
            line.seen[position] = job

    def progress(self) -> str:
        done = sum(not ask(line.known, self.lattice) for line in self.lines)
        return f"{done} of {len(self.lines)} edges known"

    def label(self, point: Point) -> str:
        return label(point, self.names)
