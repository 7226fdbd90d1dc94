"""A configuration as dotted fields: `clip.max_norm` -> 1.0."""

from __future__ import annotations

import re
from typing import Any

LINE = re.compile(r"( *)([^\s#'\"-][^:\s]*):(?: (.*))?$")


def dotted(config: dict[str, Any], before: str = "") -> dict[str, Any]:
    """{"clip": {"max_norm": 1}} -> {"clip.max_norm": 1}."""
    found: dict[str, Any] = {}
    for name, one in config.items():
        found |= dotted(one, f"{before}{name}.") if isinstance(one, dict) else {f"{before}{name}": one}
    return found


def fields_of_yaml(text: str) -> dict[str, Any]:
    """Dotted field -> value, from the YAML that OmegaConf writes; scalars only.

    A hundred times as fast as a YAML parser: a sweep has many jobs.
    """
    found: dict[str, Any] = {}
    above: list[tuple[int, str]] = []
    for line in text.splitlines():
        if (read := LINE.match(line)) is None:
            continue
        depth, name, given = len(read[1]), read[2], read[3]
        while above and above[-1][0] >= depth:
            above.pop()
        full = f"{above[-1][1]}.{name}" if above else name
        above.append((depth, full))
        if given:
            found[full] = value(given.strip("'\""))
    return found


def value(given: str) -> Any:
    """What the text of a field means: a number where it is one, else as it is."""
    for kind in (int, float):
        try:
            return kind(given)
        except ValueError:
            pass
    return {"true": True, "false": False, "null": None}.get(given, given)
