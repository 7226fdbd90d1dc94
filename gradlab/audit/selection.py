"""Which rules are selected: by code, by the beginning of codes, by name, from a severity on."""

from __future__ import annotations

from gradlab.audit.rules.registry import Rule
from gradlab.audit.source.settings import Settings, UsageError
from gradlab.codes import CODES, SEVERITIES, UNREADABLE, find_code, suggest_code


def codes(given: list[str] | None) -> list[str]:
    """Codes of an option that may be repeated, separated by commas."""
    return [code.strip() for text in given or [] for code in text.split(",") if code.strip()]


def one(given: str) -> str:
    """A code, given as itself or by its name."""
    code = find_code(given)
    if code is None:
        meant = suggest_code(given)
        raise UsageError(f"no rule {given!r}" + (f" (did you mean {meant}?)" if meant else "; --list shows them"))
    return code.code


def prefix(code: str) -> str:
    """What the selected codes begin with."""
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


def reports_unreadable(ignore: list[str]) -> bool:
    """Whether files that cannot be read are reported: always, unless that is ignored."""
    return not any(UNREADABLE.startswith(prefix(c)) for c in ignore)


def checked(chosen: Settings) -> Settings:
    """The settings. Raises UsageError that names their file for an unknown rule or severity."""
    try:
        for code in [*chosen.select, *chosen.ignore]:
            prefix(code)
        if chosen.severity not in SEVERITIES:
            raise UsageError(f"severity is {chosen.severity!r}, allowed are {', '.join(SEVERITIES)}")
    except UsageError as error:
        raise UsageError(f"{chosen.path}: tool.gradlab.audit: {error}") from None
    return chosen
