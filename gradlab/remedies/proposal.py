"""One change to try, and the ways to make one: fields that are set, a shipped remedy, lines of the user's own code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gradlab.config.remedy import shipped
from gradlab.config.remedy_option import Remedy
from gradlab.config.schema import Config
from gradlab.remedies.evidence import Evidence


@dataclass(frozen=True)
class Proposal:
    """One change, with the measurement that it rests on."""

    name: str
    """The shipped remedy's name (a plus combines), or the field that it sets."""
    remedy: Remedy | None
    """None where it is in the user's own code."""
    why: str
    lines: str = ""
    """What to change in the user's own code."""
    shipped: bool = False
    """Whether +remedy=NAME is the same."""


Maker = Callable[[Evidence, Config], Iterator[Proposal]]


def setting(name: str, why: str, fields: dict[str, Any]) -> Proposal:
    """Fields that are set: dotted name -> value."""
    return Proposal(name, Remedy(why, fields), why)


def named(name: str, because: str = "") -> Proposal:
    """A shipped remedy, or several with a plus, as one change."""
    parts = [shipped(part) for part in name.split("+")]
    made = Remedy(
        "", {k: v for p in parts for k, v in p.set.items()}, {k: v for p in parts for k, v in p.multiply.items()}
    )
    return Proposal(name, made, "; ".join(filter(None, (because, *(p.why for p in parts)))), shipped=True)


def code(name: str, lines: str, why: str) -> Proposal:
    return Proposal(name, None, why, lines)


def structural(*names: str) -> Maker:
    """Shipped remedies that change a model of gradlab's own."""

    def make(e: Evidence, c: Config) -> Iterator[Proposal]:
        yield from (named(name) for name in names)

    return make
