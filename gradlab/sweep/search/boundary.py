"""The search for edges: one line of values for each point of the other axes and each seed, all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gradlab.base.option import Invalid
from gradlab.sweep.grid.axes import Point, axes, given, label, spelling, without
from gradlab.sweep.search.edge import Edge, ask, edge
from gradlab.sweep.search.judge import JUDGES, Seen
from gradlab.sweep.search.lattice import Lattice, lattice
from gradlab.sweep.search.options import BoundaryOption


@dataclass
class Hunt:
    """One edge: a point under a seed."""

    point: Point
    seed: str | None
    known: dict[int, bool | None] = field(default_factory=dict)
    seen: dict[int, Seen] = field(default_factory=dict)

    @property
    def edge(self) -> Edge:
        return edge(self.known)


class Boundary:
    """Asks for values of one field until every hunt knows its edge."""

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
        self.lattice: Lattice = lattice(option, float(first) if first is not None else start, whole)
        self.points = list(dict.fromkeys(without(point, option.field, "seed") for point in points))
        self.names = [name for name in swept if name != "seed"]
        hunts = {}
        for point in points:
            rest = without(point, option.field, "seed")
            for seed in option.seeds if option.seeds is not None else [given(point, "seed")]:
                word = None if seed is None else str(seed)
                hunts[rest, word] = Hunt(rest, word)
        self.hunts = list(hunts.values())
        self.asked: list[tuple[Hunt, int]] = []

    def ask(self) -> list[Point]:
        self.asked = [(hunt, p) for hunt in self.hunts for p in ask(hunt.known, self.lattice)]
        return [self.job(hunt, p) for hunt, p in self.asked]

    def job(self, hunt: Hunt, position: int) -> Point:
        """Overrides of a hunt's run at a position."""
        seed = () if hunt.seed is None else (f"seed={hunt.seed}",)
        expect = () if given(hunt.point, "expect") else ("expect=any",)
        return (*hunt.point, f"{self.field}={self.lattice.value(position)}", *seed, *expect)

    def tell(self, seen: Sequence[Seen]) -> None:
        for (hunt, position), one in zip(self.asked, seen, strict=False):
            hunt.known[position] = JUDGES[self.option.judge](one.told)
            hunt.seen[position] = one

    def progress(self) -> str:
        done = sum(not ask(hunt.known, self.lattice) for hunt in self.hunts)
        return f"{done} of {len(self.hunts)} edges known"

    def report(self, folder: Path, ended: str | None) -> None:
        from gradlab.sweep.search import edges

        edges.report(folder, self, ended)

    def label(self, point: Point) -> str:
        return label(point, self.names)
