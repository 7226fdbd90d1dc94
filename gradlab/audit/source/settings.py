"""`[tool.gradlab.audit]` of the audited project's pyproject.toml."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

TABLE = ("tool", "gradlab", "audit")
FIELDS = ("select", "ignore", "exclude", "severity")
Excluded = Callable[[str], bool]


class UsageError(Exception):
    """A wrong command or setting: one line, exit code 2."""


@dataclass
class Settings:
    select: list[str] = field(default_factory=list)
    ignore: list[str] = field(default_factory=list)
    exclude: list[str] = field(default_factory=list)
    severity: str = "advice"
    path: Path | None = None


def settings(start: Path) -> Settings:
    """The settings of the nearest pyproject.toml that has the table, from a folder upwards."""
    start = start.resolve()
    for folder in [start, *start.parents]:
        path = folder / "pyproject.toml"
        if not path.is_file():
            continue
        try:
            import tomllib

            table = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        except (OSError, ValueError) as error:
            raise UsageError(f"{path}: {error}") from None
        for i, name in enumerate(TABLE):
            if (inner := table.get(name)) is None:
                break
            if not isinstance(inner, dict):
                raise UsageError(f"{path}: {'.'.join(TABLE[: i + 1])} is {inner!r}, expected a table")
            table = inner
        else:
            return checked_types(table, path)
    return Settings()


def checked_types(table: dict[str, Any], path: Path) -> Settings:
    """Settings of a table. Raises UsageError for an unknown name or a value of the wrong type."""
    for name, value in table.items():
        if name not in FIELDS:
            raise UsageError(f"{path}: tool.gradlab.audit.{name} is unknown; there are {', '.join(FIELDS)}")
        valid = (
            isinstance(value, str)
            if name == "severity"
            else isinstance(value, list) and all(isinstance(v, str) for v in value)
        )
        if not valid:
            wanted = "a word" if name == "severity" else "a list of words"
            raise UsageError(f"{path}: tool.gradlab.audit.{name} is {value!r}, expected {wanted}")
    return Settings(**table, path=path)


def exclusion(patterns: list[str], root: Path) -> Excluded:
    """What `exclude` leaves out: names of files and folders, or paths below a folder, with * and ?."""
    wanted = [pattern.removeprefix("./").rstrip("/") for pattern in patterns]

    def excluded(path: str) -> bool:
        relative = os.path.relpath(os.path.abspath(path), root).replace(os.sep, "/")
        parts = relative.split("/")
        if parts[0] == "..":
            parts = parts[-1:]
        heads = ["/".join(parts[: i + 1]) for i in range(len(parts))]
        return any(
            fnmatch(head if "/" in pattern else head.rsplit("/", 1)[-1], pattern)
            for head in heads
            for pattern in wanted
        )

    return excluded if wanted else lambda path: False
