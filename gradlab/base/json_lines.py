"""Files of JSON and of JSON lines, and numbers that JSON has no signs for."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from gradlab.base.regular_file import regular

T = TypeVar("T")

FLUSH_BYTES = 1 << 16
FLUSH_SECONDS = 1.0
"""What was written longer ago can be read by others: a run can be followed."""
TOGETHER = 64
"""Lines made into text at a time: after an update the code is in no cache, and a line by itself takes 3x as long."""
dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: they are written as the strings "NaN", "Infinity" and "-Infinity".

    `float()` and JavaScript's `Number()` read all three back.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


def write_whole(path: Path, text: str | bytes) -> None:
    """Write a file whole or not at all: a kill leaves the old one, or none."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        if isinstance(text, bytes):
            partial.write_bytes(text)
        else:
            partial.write_text(text, encoding="utf-8", errors="backslashreplace")  # of names that are not
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: Path, content: Any, indent: int | None = 2) -> None:
    """Write a file of JSON, whole or not at all. indent: None for one line without blanks."""
    separators = (",", ":") if indent is None else None
    write_whole(path, json.dumps(plain(content), indent=indent, separators=separators, allow_nan=False) + "\n")


def read_object(path: Path) -> dict[str, Any] | None:
    """The object in a file of JSON; None where there is none that can be read."""
    try:
        with open(regular(path), encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def number(value: Any) -> Any:
    """The inverse of `plain`."""
    if isinstance(value, list):
        return [number(v) for v in value]
    if isinstance(value, dict):
        return {k: number(v) for k, v in value.items()}
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value


def from_object(cls: type[T], content: dict[str, Any]) -> T:
    """A dataclass from its object; fields of another version are left out."""
    known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
    return cls(**{k: v for k, v in content.items() if k in known})


def read_lines(path: Path, size: float = math.inf) -> Iterator[dict[str, Any]]:
    """The objects in the first `size` bytes of a file written by `Lines`; lines that cannot be read are left out."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        for line in file:
            size -= len(line)
            if size < 0 or not line.endswith(b"\n"):
                return
            if (found := parsed(line)) is not None:
                yield {k: number(v) for k, v in found.items()}


def parsed(line: bytes) -> dict[str, Any] | None:
    """The object in a line; None where a kill or a power loss has damaged it."""
    try:
        found = json.loads(line) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def intact(path: Path, size: int) -> int:
    """Bytes of a file of lines that a resumed run continues after: never more than there are.

    Lines that cannot be read are taken out of its first `size` bytes: others could not read the file.
    """
    if size <= 0 or not path.is_file():
        return 0
    with path.open("rb") as file:
        lines = file.read(min(size, path.stat().st_size)).splitlines(keepends=True)
    whole = [line for line in lines if parsed(line) is not None]
    if len(whole) < len(lines):
        write_whole(path, b"".join(whole))
    return sum(map(len, whole))


class Lines:
    """An append-only file of JSON lines, buffered; `size` after a flush is where a resumed run continues."""

    def __init__(self, path: Path, keep: int = 0) -> None:
        """keep: bytes of an existing file that stand; what follows was written after the checkpoint."""
        self.file = path.open("r+b" if keep else "wb", buffering=FLUSH_BYTES)
        self.file.truncate(keep)
        self.file.seek(keep)
        self.waiting: list[dict[str, Any]] = []
        self.flushed = time.monotonic()

    def write(self, line: dict[str, Any]) -> None:
        """Take in a line, which may not be changed afterwards."""
        self.waiting.append(line)
        if time.monotonic() - self.flushed > FLUSH_SECONDS:
            self.flush()
        elif len(self.waiting) >= TOGETHER:
            self.catch_up()

    def catch_up(self) -> None:
        """Write the lines that wait."""
        waiting, self.waiting = self.waiting, []
        for line in waiting:
            try:
                text = dumps(line)
            except ValueError:  # not finite
                text = dumps(plain(line))
            self.file.write(text.encode() + b"\n")

    def flush(self) -> int:
        self.catch_up()
        self.file.flush()
        self.flushed = time.monotonic()
        return self.file.tell()

    def abandon(self) -> None:
        """In a forked copy of the process: the waiting lines are left for the original to write."""
        self.waiting.clear()
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), self.file.fileno())

    def close(self) -> None:
        try:
            self.catch_up()
        finally:
            self.file.close()
