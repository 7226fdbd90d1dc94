"""What each option is, and its fields: for `--help GROUP` and as a page of the documentation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from gradlab.base.docstrings import documented, paragraphs
from gradlab.base.option import OPTIONS
from gradlab.base.visible import wrapped
from gradlab.config.schema import Config


def chosen(group: str, name: str = "") -> dict[str, type]:
    """The options of a group by name, or the one of that name; "" is the root of the configuration."""
    if not group:
        return {"": Config}
    return {option: cls for (g, option), cls in sorted(OPTIONS.items()) if g == group and name in ("", option)}


def described(cls: type) -> Iterator[tuple[str, str, str]]:
    """Name, default and meaning of each field that a user may set."""
    meanings = documented(cls)
    for f in fields(cls):
        nested = f.default_factory is not MISSING and is_dataclass(f.default_factory)  # the thresholds of a rule
        if f.init and not nested and (f.name in meanings or cls is not Config):
            yield f.name, default(f), meanings.get(f.name, "")


def default(field: Field[Any]) -> str:
    """A field's default as it is typed on a command line."""
    value = field.default_factory() if field.default_factory is not MISSING else field.default
    if value is MISSING or value == "???":
        return "required"
    return json.dumps(value).strip('"') if isinstance(value, str | bool | list | dict | None) else f"{value:g}"


def in_terminal(group: str, name: str, columns: int) -> str:
    """What `--help` prints of a group, or of one of its options."""
    parts = []
    for option, cls in chosen(group, name).items():
        lines = [f"{group}={option}: {paragraphs(cls)[0]}"]
        for field, value, meaning in described(cls):
            lines += [f"  {prefix(group, option)}{field}={value}", f"      {meaning}"]
        parts += ["\n".join(part for line in lines for part in wrapped(line, columns, len(line) - len(line.lstrip())))]
    return "\n\n".join(parts)


def prefix(group: str, option: str) -> str:
    """What stands before a field of an option."""
    return f"logger.{option}." if group == "logger" else f"{group}." if group else ""


def reference() -> str:
    """The page of all options: a section a group, with a table of the fields of each option."""
    lines: list[str] = []
    for group in ("", *sorted({group for group, _ in OPTIONS if group != "rule"})):
        lines += ["", f"## {group or 'At the root'}"]
        for option, cls in chosen(group).items():
            title, *rest = paragraphs(cls)
            lines += ["", f"### `{group}={option}`", "", title, *rest] if group else ["", title, *rest]
            if rows := list(described(cls)):
                lines += ["", "| field | default | meaning |", "|---|---|---|"]
                lines += [f"| `{prefix(group, option)}{f}` | {cell(v)} | {cell(meaning)} |" for f, v, meaning in rows]
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    return text.replace("|", "\\|")
