"""Which rules speak: by code, by the beginning of codes, by name, from a severity on."""

from __future__ import annotations

from gradlab.audit.finding import SEVERITIES
from gradlab.audit.rules import Rule
from gradlab.audit.settings import Settings, Wrong


def codes(given: list[str] | None) -> list[str]:
    return [code.strip() for text in given or [] for code in text.split(",") if code.strip()]


def one(code: str, known: dict[str, Rule]) -> str:
    by_name = {rule.name: rule.code for rule in known.values()}
    found = code.upper() if code.upper() in known else by_name.get(code.lower())
    if found is None:
        import difflib

        close = difflib.get_close_matches(code.upper(), known, n=1) or difflib.get_close_matches(code, by_name, n=1)
        raise Wrong(f"no rule {code!r}" + (f" (did you mean {close[0]}?)" if close else "; --list shows them"))
    return found


def prefix(code: str, known: dict[str, Rule]) -> str:
    """What the codes that are meant begin with."""
    if code.upper() == "ALL":
        return ""
    upper = code.upper()
    return upper if any(name.startswith(upper) for name in [*known, "GL000"]) else one(code, known)


def choose(known: dict[str, Rule], select: list[str], ignore: list[str], severity: str) -> dict[str, Rule]:
    wanted, unwanted = [prefix(c, known) for c in select], [prefix(c, known) for c in ignore]
    lowest = SEVERITIES.index(severity)
    return {
        c: r
        for c, r in known.items()
        if (any(c.startswith(w) for w in wanted) if select else r.default)
        and not any(c.startswith(u) for u in unwanted)
        and SEVERITIES.index(r.severity) >= lowest
    }


def checked(chosen: Settings, known: dict[str, Rule]) -> Settings:
    """Settings that name a rule or a severity that is not there are told with their file."""
    try:
        for code in [*chosen.select, *chosen.ignore]:
            prefix(code, known)
        if chosen.severity not in SEVERITIES:
            raise Wrong(f"severity is {chosen.severity!r}, allowed are {', '.join(SEVERITIES)}")
    except Wrong as error:
        raise Wrong(f"{chosen.path}: tool.gradlab.audit: {error}") from None
    return chosen
