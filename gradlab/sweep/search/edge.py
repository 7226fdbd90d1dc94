"""Where along one field runs stop being stable: which values to try next, given those tried. Pure functions of the
positions tried on a `Lattice`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

from gradlab.sweep.search.lattice import Lattice

Known = Mapping[int, bool | None]
"""Position -> whether the run was stable; None where it gave no verdict."""


@dataclass(frozen=True)
class Edge:
    """An edge as far as it is known: positions of the last stable and of the first unstable value."""

    stable: int | None
    """None: no value tried was stable."""
    first_unstable: int | None
    """None: stable to the last value tried."""
    again: tuple[int, ...] = ()
    """Stable ones beyond it: there is more than one edge, and this is the first."""
    before: tuple[int, ...] = ()
    """Unstable ones on the stable side of the edge."""


def edge(known: Known) -> Edge:
    """The first edge after the first stable value."""
    good = sorted(p for p, s in known.items() if s)
    unstable = sorted(p for p, s in known.items() if s is False)
    if not good:
        return Edge(None, min(unstable, default=None))
    first_unstable = next((p for p in unstable if p > good[0]), None)
    if first_unstable is None:
        return Edge(good[-1], None, before=tuple(unstable))
    below = [p for p in good if p < first_unstable]
    beyond = tuple(p for p in good if p > first_unstable)
    return Edge(below[-1], first_unstable, beyond, tuple(p for p in unstable if p < good[0]))


def ask(known: Known, on: Lattice) -> list[int]:
    """Positions to try next; none if the edge is known, or cannot be found."""
    if not known:
        return opening(on)
    found = edge(known)
    if found.stable is None:
        wanted = outwards(known, on, -1) or outwards(known, on, 1)
    elif found.first_unstable is None:
        wanted = outwards(known, on, 1)
    else:
        wanted = between(found.stable, found.first_unstable, on.points)
    return fresh(wanted, known) or fresh(gaps(known, on.checks), known)


def fresh(wanted: Iterable[int], known: Known) -> list[int]:
    return [p for p in wanted if p not in known]


def opening(on: Lattice) -> list[int]:
    """Both bounds and as many positions between as a round has room for; without bounds the origin."""
    if on.first is None or on.last is None:
        return [0]
    return sorted({on.first, on.last, *between(on.first, on.last, on.points - 1)})


def outwards(known: Known, on: Lattice, sign: int) -> list[int]:
    """The next values in one direction (1: towards those that are unstable), up to the bound or the last doubling."""
    judged = [p for p, s in known.items() if s is not None]
    if not judged:
        return []
    tried = max(judged, key=lambda p: p * sign)
    bound = on.last if sign > 0 else on.first
    refused = [p for p in known if p * sign > tried * sign]
    if refused:  # values that the field does not allow: where does the allowed range end?
        nearest = min(refused, key=lambda p: p * sign)
        return between(min(tried, nearest), max(tried, nearest), on.points)
    reach = [sign * offset for offset in on.offsets] if bound is None else [bound]
    if bound is not None and bound != tried:  # from a bound on one side only: doubling up to the other
        reach = [p for p in (sign * offset for offset in on.offsets) if p * sign < bound * sign] + reach
    return [p for p in reach if p * sign > tried * sign][: on.points]


def between(low: int, high: int, count: int) -> list[int]:
    """`count` positions strictly between, evenly spaced; fewer where there are fewer."""
    return sorted({low + (high - low) * i // (count + 1) for i in range(1, count + 1)} - {low, high})


def gaps(known: Known, checks: int) -> list[int]:
    """Positions to try so that no untried part of the range is wider than 1/(checks + 1) of it."""
    tried = sorted(p for p, s in known.items() if s is not None)
    if not checks or len(tried) < 2:
        return []
    widest = max(1, ceil((tried[-1] - tried[0]) / (checks + 1)))
    pairs = pairwise(tried)
    return [p for low, high in pairs for p in between(low, high, ceil((high - low) / widest) - 1)]
