"""Parameter groups: settings of the parameters whose names match a pattern, `optimizer.groups=[{match: bias, ...}]`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from gradlab.base.option import Invalid, require
from gradlab.base.visible import listed


class Group(NamedTuple):
    """Parameters that the same entries match."""

    label: str
    """What they match; empty for the parameters that none does."""
    settings: dict[str, Any]
    names: list[str]


def grouped(entries: Sequence[Any], names: Sequence[str]) -> list[Group]:
    """Every parameter in one group. Of several entries that match a name the later one's settings count.

    An entry is {match: PATTERN, ...settings}. With lr_decay its pattern holds a number, (\\d+), as in the names of
    blocks: the last one's rate is scaled by 1, the one before by lr_decay, and so on. An optimizer begins anew.
    """
    found: dict[str, tuple[list[str], dict[str, Any]]] = {name: ([], {}) for name in names}
    for i, entry in enumerate(entries):
        for name, (label, settings) in matched(f"groups.{i}", entry, names).items():
            if "optimizer" in settings:  # what others say is of another one
                found[name] = [], {}
            found[name][0].append(label)
            found[name][1].update(settings)
    groups: dict[str, Group] = {}
    for name, (labels, settings) in found.items():
        label = " ".join(labels)
        groups.setdefault(label, Group(label, settings, [])).names.append(name)
    return list(groups.values())


def matched(field: str, entry: Any, names: Sequence[str]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Name -> label and settings, of the names that an entry matches."""
    if not isinstance(entry, dict) or not isinstance(entry.get("match"), str) or len(entry) < 2:
        why = 'must be {match: PATTERN, SETTING: VALUE}, as in {match: "norm|bias", lr_scale: 0.1}'
        raise Invalid(field, entry, why)
    settings = {name: value for name, value in entry.items() if name != "match"}
    pattern, decay = entry["match"], settings.pop("lr_decay", None)
    try:
        found = {name: m for name in names if (m := re.search(pattern, name)) is not None}
    except re.error as error:
        raise Invalid(f"{field}.match", pattern, f"must be a regular expression: {error}") from None
    if not found:
        raise Invalid(f"{field}.match", pattern, f"matches the name of no parameter; there are {listed(names)}")
    for name, value in (("lr_scale", settings.get("lr_scale", 1)), ("lr_decay", decay if decay is not None else 1)):
        fine = isinstance(value, (int, float)) and 0 <= value < float("inf")
        require(fine, f"{field}.{name}", value, ">= 0 and finite")
    if decay is None:
        return dict.fromkeys(found, (pattern, settings))
    if not all(m.groups() and (m[1] or "").isdigit() for m in found.values()):
        raise Invalid(f"{field}.match", pattern, "must hold a number for lr_decay, as in blocks\\.(\\d+)")
    last = max(int(m[1]) for m in found.values())
    return {name: (m[0], settings | {"lr_scale": decay ** (last - int(m[1]))}) for name, m in found.items()}
