"""Which runs are listed, and in what order: FIELD=VALUE and its like.

    verdict=exploding,diverged    one of these; * and ? stand for anything
    verdict!=healthy              none of these
    optimizer.lr>0.1  loss<=2     a number that is larger, smaller
    time>2026-11-20               later

A field is one of FIELDS, a group (clip=norm) or a field of the runs' configuration, the last part of whose name is
enough (lr). What a run does not have is `none`, which is neither more nor less than anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from gradlab.base.fields import value
from gradlab.base.option import Invalid
from gradlab.base.suggestions import did_you_mean
from gradlab.runs.record import NUMBERS, STATES
from gradlab.runs.run_list import Entry, natural

FIELDS = ("folder", "kind", "verdict", *NUMBERS, "time")
CONDITION = re.compile(r"([^=!<>~]+)(!=|<=|>=|=|<|>)(.*)")
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


@dataclass
class Condition:
    """What a run must be."""

    given: str
    field: str
    operator: str
    value: str

    def __call__(self, seen: Any) -> bool:
        if self.operator in ("=", "!="):
            return any(same(seen, wanted) for wanted in self.value.split(",")) == (self.operator == "=")
        if self.field == "time":
            return OPERATORS[self.operator](seen[: len(self.value)], self.value)
        if isinstance(seen, bool) or not isinstance(seen, (int, float)):
            return False
        return OPERATORS[self.operator](seen, float(self.value))


def same(seen: Any, wanted: str) -> bool:
    """Whether a field has a value, as it is typed."""
    if seen is None:
        return wanted.lower() in ("none", "null", "")
    if isinstance(seen, bool):
        return wanted.lower() == str(seen).lower()
    if isinstance(seen, (int, float)):
        number = value(wanted)
        return seen == number or (seen != seen and number != number)
    return fnmatchcase(str(seen), wanted)


def parse(given: str) -> Condition:
    """Raise `Invalid` where it is no condition."""
    found = CONDITION.fullmatch(given.strip())
    if found is None:
        allowed = "must be FIELD=VALUE, or with != < <= > >= in quotes (a shell takes < and > for itself)"
        raise Invalid("--filter", given, allowed)
    name, operator, wanted = (part.strip() for part in found.groups())
    if operator in OPERATORS and name != "time" and not isinstance(value(wanted), (int, float)):
        raise Invalid("--filter", given, f"{operator} must be followed by a number")
    if operator in OPERATORS and name in ("folder", "kind", "verdict"):
        raise Invalid("--filter", given, f"{name} is a word: = or != it")
    if name == "verdict":
        known_verdict(given, wanted)
    if name == "kind" and not {"run", "sweep"} >= set(wanted.split(",")):
        raise Invalid("--filter", given, "kind must be one of run, sweep")
    return Condition(given, name, operator, wanted)


def known_verdict(given: str, wanted: str) -> None:
    """Refuse a verdict that no run can have."""
    from gradlab.codes import CODES_BY_NAME
    from gradlab.diagnosis.options import VERDICTS

    known = [*VERDICTS, *STATES, "not_measured", *CODES_BY_NAME]  # those of a watched loop are its mistakes
    for word in wanted.split(","):
        if not any(fnmatchcase(verdict, word) for verdict in known):
            allowed = (
                f"verdict must be one of {', '.join(VERDICTS + STATES)} or a mistake's name{did_you_mean(word, known)}"
            )
            raise Invalid("--filter", given, allowed)


def resolve(flag: str, name: str, entries: Sequence[Entry]) -> str:
    """The full name of a field, the least deep among those of all entries; `Invalid` where there is not just one."""
    if name in FIELDS:
        return name
    known = {field for entry in entries for field in entry.fields}
    if name in known:
        return name
    ends = sorted(field for field in known if field.endswith(f".{name}"))
    depth = min((field.count(".") for field in ends), default=0)  # a remedy's own settings repeat names, further down
    ends = [field for field in ends if field.count(".") == depth]
    if len(ends) == 1:
        return ends[0]
    if ends:
        raise Invalid(flag, name, f"must be one of {', '.join(ends)}")
    close = did_you_mean(name, [*FIELDS, *known, *(field.rpartition(".")[2] for field in known)])
    allowed = f"must be one of {', '.join(FIELDS)}, a group (clip) or a field of the configuration (optimizer.lr)"
    raise Invalid(flag, name, f"no such field{close}; {allowed}")


def field_of(entry: Entry, name: str) -> Any:
    """An entry's value of a full name."""
    if name in NUMBERS:
        return entry.numbers.get(name)
    if name in ("folder", "kind", "verdict", "time"):
        return getattr(entry, {"folder": "name", "time": "when"}.get(name, name))
    return entry.fields.get(name)


def chosen(entries: Sequence[Entry], conditions: Sequence[Condition]) -> list[Entry]:
    """The entries that meet all conditions; of a sweep the jobs that do, and the sweep if there are any."""
    singles = [job for entry in entries for job in (entry.jobs if entry.kind == "sweep" else [entry])]
    for condition in conditions:
        condition.field = resolve("--filter", condition.field, singles)
    wanted_kind = [c for c in conditions if c.field == "kind"]
    others = [c for c in conditions if c.field != "kind"]
    kept = []
    for entry in entries:
        if not all(c(entry.kind) for c in wanted_kind):
            continue
        if entry.kind == "sweep":
            entry.jobs = [job for job in entry.jobs if all(c(field_of(job, c.field)) for c in others)]
        if entry.jobs or (entry.kind != "sweep" and all(c(field_of(entry, c.field)) for c in others)):
            kept.append(entry)
    return kept


def ordered(entries: Sequence[Entry], name: str, reverse: bool) -> list[Entry]:
    """Numbers upwards, words by the alphabet, times downwards; what has no value comes last."""
    if name == "time":
        return sorted(entries, key=lambda entry: entry.time, reverse=not reverse)
    seen = [(field_of(entry, name), entry) for entry in entries]
    there = [(v, entry) for v, entry in seen if v is not None and v == v]
    if any(isinstance(v, str) for v, _ in there):
        there = [(natural(str(v)), entry) for v, entry in there]
    there.sort(key=lambda pair: pair[0], reverse=reverse)
    return [entry for _, entry in there] + [entry for v, entry in seen if v is None or v != v]
