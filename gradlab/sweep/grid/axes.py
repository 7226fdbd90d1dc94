"""Overrides of a sweep as axes and points. Pure functions on strings."""

from __future__ import annotations

from collections.abc import Sequence

from gradlab.base.command import key

Point = tuple[str, ...]
"""Overrides of one job, without those that a search sets."""


def axes(points: Sequence[Point]) -> dict[str, list[str]]:
    """The fields that differ between points, with their values in order."""
    values: dict[str, dict[str, None]] = {}
    for point in points:
        for override in point:
            values.setdefault(key(override), {})[override.partition("=")[2]] = None
    return {name: list(found) for name, found in values.items() if len(found) > 1}


def without(point: Sequence[str], *names: str) -> Point:
    return tuple(o for o in point if key(o) not in names)


def given(point: Sequence[str], name: str) -> str | None:
    """The value that a point gives a field."""
    return next((o.partition("=")[2] for o in reversed(point) if key(o) == name), None)


def spelling(point: Sequence[str], name: str) -> str:
    """A field as a point writes it: one that was appended needs its plus."""
    return next((o.partition("=")[0] for o in reversed(point) if key(o) == name), name)


def label(point: Sequence[str], names: Sequence[str]) -> str:
    """A point by the fields that differ."""
    return " ".join(o.lstrip("+") for o in point if key(o) in names) or "-"


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
