"""The search for edges: one line of values for each point of the other axes and each seed, all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gradlab.option import Invalid
from gradlab.sweep.axes import Point, axes, given, label, spelling, without
from gradlab.sweep.edge import Edge, Line, ask, edge, line
from gradlab.sweep.judge import JUDGES, Seen
from gradlab.sweep.options import BoundaryOption


@dataclass
class Lane:
    """One edge: a point under a seed."""

    point: Point
    seed: str | None
    known: dict[int, bool | None] = field(default_factory=dict)
    seen: dict[int, Seen] = field(default_factory=dict)

    @property
    def edge(self) -> Edge:
        return edge(self.known)


class Boundary:
    """Asks for values of one field until every lane knows its edge."""

    def __init__(self, option: BoundaryOption, points: Sequence[Point], start: float | None, whole: bool) -> None:
        """points: overrides, one list a point. start: the field's composed value. whole: of whole numbers."""
        self.option = option
        swept = axes(points)
        if option.field in swept:
            raise Invalid(option.field, ",".join(swept[option.field]), "is what is searched: give low and high")
        if option.seeds is not None and any(given(point, "seed") for point in points):
            raise Invalid("hydra.sweeper.seeds", list(option.seeds), "is given by seed= too")
        first = given(points[0], option.field)
        self.field = spelling(points[0], option.field)
        self.line: Line = line(option, float(first) if first is not None else start, whole)
        self.points = list(dict.fromkeys(without(point, option.field, "seed") for point in points))
        self.names = [name for name in swept if name != "seed"]
        lanes = {}
        for point in points:
            rest = without(point, option.field, "seed")
            for seed in option.seeds if option.seeds is not None else [given(point, "seed")]:
                word = None if seed is None else str(seed)
                lanes[rest, word] = Lane(rest, word)
        self.lanes = list(lanes.values())
        self.asked: list[tuple[Lane, int]] = []

    def ask(self) -> list[Point]:
        self.asked = [(lane, p) for lane in self.lanes for p in ask(lane.known, self.line)]
        return [self.job(lane, p) for lane, p in self.asked]

    def job(self, lane: Lane, position: int) -> Point:
        """Overrides of a lane's run at a position."""
        seed = () if lane.seed is None else (f"seed={lane.seed}",)
        expect = () if given(lane.point, "expect") else ("expect=any",)
        return (*lane.point, f"{self.field}={self.line.value(position)}", *seed, *expect)

    def tell(self, seen: Sequence[Seen]) -> None:
        for (lane, position), one in zip(self.asked, seen, strict=False):
            lane.known[position] = JUDGES[self.option.judge](one.told)
            lane.seen[position] = one

    def progress(self) -> str:
        done = sum(not ask(lane.known, self.line) for lane in self.lanes)
        return f"{done} of {len(self.lanes)} edges known"

    def report(self, folder: Path, ended: str | None) -> None:
        from gradlab.sweep import edges

        edges.report(folder, self, ended)

    def label(self, point: Point) -> str:
        return label(point, self.names)
