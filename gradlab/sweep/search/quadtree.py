"""A grid over two axes, refined where neighbours differ. Pure functions of the points tried so far.

Points (i, j) are the corners of n x n cells, 0 <= i, j <= n. A cell is split in four while points on its border or
inside it differ, those included that its neighbours needed: so a boundary that enters through a side is refined too.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

Corner = tuple[int, int]
Tried = Mapping[Corner, Hashable]
"""Point -> the class of its run."""


@dataclass(frozen=True)
class Cell:
    """A square of the tree that is not split."""

    i: int
    j: int
    size: int
    agree: bool
    """Whether all points tried in it are of one class; False only of a smallest one, or where corners are missing."""

    @property
    def corners(self) -> list[Corner]:
        return [(self.i + a * self.size, self.j + b * self.size) for a in (0, 1) for b in (0, 1)]

    def holds(self, place: Corner) -> bool:
        """Whether a point lies in it or on its border."""
        return 0 <= place[0] - self.i <= self.size and 0 <= place[1] - self.j <= self.size


def leaves(tried: Tried, resolution: int, coarse: int) -> Iterator[Cell]:
    """The cells of the tree, row by row of the coarse grid."""
    size = resolution // coarse
    inside: dict[Corner, list[Corner]] = {}
    for place in tried:  # a point on a border belongs to every cell that it touches
        for a in touching(place[0], size, coarse):
            for b in touching(place[1], size, coarse):
                inside.setdefault((a, b), []).append(place)
    for a in range(coarse):
        for b in range(coarse):
            yield from split(Cell(a * size, b * size, size, True), inside.get((a, b), []), tried)


def touching(at: int, size: int, count: int) -> list[int]:
    """Coarse cells along one axis that a point lies in or borders on."""
    return [k for k in ({at // size, (at - 1) // size}) if 0 <= k < count]


def split(cell: Cell, places: Sequence[Corner], tried: Tried) -> Iterator[Cell]:
    """The leaves under a cell; one whose corners were not all tried is one, until they are."""
    known = all(corner in tried for corner in cell.corners)
    if len({tried[place] for place in places}) <= 1 or not known or cell.size == 1:
        agree = known and len({tried[place] for place in places}) == 1
        yield Cell(cell.i, cell.j, cell.size, agree)
        return
    half = cell.size // 2
    for a in (0, half):
        for b in (0, half):
            part = Cell(cell.i + a, cell.j + b, half, True)
            yield from split(part, [place for place in places if part.holds(place)], tried)


def ask(tried: Tried, resolution: int, coarse: int) -> list[Corner]:
    """Corners that are missing; none when the map is done."""
    cells = leaves(tried, resolution, coarse)
    return list(dict.fromkeys(corner for cell in cells for corner in cell.corners if corner not in tried))


def skipped(tried: Tried, cells: Sequence[Cell]) -> dict[Corner, Hashable]:
    """Every point that was not tried, with the class that its cell says it has."""
    found: dict[Corner, Hashable] = {}
    for cell in cells:
        if cell.agree:
            here = tried[cell.i, cell.j]
            for i in range(cell.i, cell.i + cell.size + 1):
                for j in range(cell.j, cell.j + cell.size + 1):
                    if (i, j) not in tried:
                        found[i, j] = here
    return found


def sample(places: Sequence[Corner], count: int, seed: int = 0) -> list[Corner]:
    """`count` of them at random, the same ones every time."""
    return sorted(Random(seed).sample(sorted(places), min(count, len(places))))


def at_most(wrong: int, count: int) -> float:
    """Upper 95% bound of a share of which `wrong` in `count` were seen: Clopper and Pearson's, one-sided."""
    from scipy.special import betaincinv

    return float(betaincinv(wrong + 1, count - wrong, 0.95)) if wrong < count else 1.0
