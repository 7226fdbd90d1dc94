"""`[tool.gradlab.audit]` of the audited project's pyproject.toml."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TABLE = ("tool", "gradlab", "audit")
FIELDS = ("select", "ignore", "exclude", "severity")


class Wrong(Exception):
    """A wrong command or setting: one line, exit code 2."""


@dataclass
class Settings:
    select: list[str] = field(default_factory=list)
    ignore: list[str] = field(default_factory=list)
    exclude: list[str] = field(default_factory=list)
    severity: str = "advice"
    path: Path | None = None


def settings(start: Path) -> Settings:
    """Those of the nearest pyproject.toml that has the table, from a path upwards."""
    start = start.resolve()
    for folder in [start, *start.parents]:
        path = folder / "pyproject.toml"
        if not path.is_file():
            continue
        try:
            import tomllib

            table = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        except (OSError, ValueError) as error:
            raise Wrong(f"{path}: {error}") from None
        for i, name in enumerate(TABLE):
            if (inner := table.get(name)) is None:
                break
            if not isinstance(inner, dict):
                raise Wrong(f"{path}: {'.'.join(TABLE[: i + 1])} is {inner!r}, expected a table")
            table = inner
        else:
            return made(table, path)
    return Settings()


def made(table: dict[str, Any], path: Path) -> Settings:
    for name, value in table.items():
        if name not in FIELDS:
            raise Wrong(f"{path}: tool.gradlab.audit.{name} is unknown; there are {', '.join(FIELDS)}")
        right = (
            isinstance(value, str)
            if name == "severity"
            else isinstance(value, list) and all(isinstance(v, str) for v in value)
        )
        if not right:
            wanted = "a word" if name == "severity" else "a list of words"
            raise Wrong(f"{path}: tool.gradlab.audit.{name} is {value!r}, expected {wanted}")
    return Settings(**table, path=path)
