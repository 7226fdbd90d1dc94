"""Which rules speak: by code, by the beginning of codes, by name, from a severity on."""

from __future__ import annotations

from gradlab.audit.rules import Rule
from gradlab.audit.source.settings import Settings, Wrong
from gradlab.codes import CODES, SEVERITIES, UNREADABLE, find_code, suggest_code


def codes(given: list[str] | None) -> list[str]:
    return [code.strip() for text in given or [] for code in text.split(",") if code.strip()]


def one(given: str) -> str:
    """A code, given itself or by its name."""
    code = find_code(given)
    if code is None:
        meant = suggest_code(given)
        raise Wrong(f"no rule {given!r}" + (f" (did you mean {meant}?)" if meant else "; --list shows them"))
    return code.code


def prefix(code: str) -> str:
    """What the codes that are meant begin with."""
    if code.upper() == "ALL":
        return ""
    upper = code.upper()
    return upper if any(name.startswith(upper) for name in CODES) else one(code)


def choose(known: dict[str, Rule], select: list[str], ignore: list[str], severity: str) -> dict[str, Rule]:
    wanted, unwanted = [prefix(c) for c in select], [prefix(c) for c in ignore]
    lowest = SEVERITIES.index(severity)
    return {
        c: r
        for c, r in known.items()
        if (any(c.startswith(w) for w in wanted) if select else r.default)
        and not any(c.startswith(u) for u in unwanted)
        and SEVERITIES.index(r.severity) >= lowest
    }


def reading(ignore: list[str]) -> bool:
    """Whether texts that cannot be read are told of: unless that is ignored, whatever is selected."""
    return not any(UNREADABLE.startswith(prefix(c)) for c in ignore)


def checked(chosen: Settings) -> Settings:
    """Settings that name a rule or a severity that is not there are told with their file."""
    try:
        for code in [*chosen.select, *chosen.ignore]:
            prefix(code)
        if chosen.severity not in SEVERITIES:
            raise Wrong(f"severity is {chosen.severity!r}, allowed are {', '.join(SEVERITIES)}")
    except Wrong as error:
        raise Wrong(f"{chosen.path}: tool.gradlab.audit: {error}") from None
    return chosen
