"""metrics.jsonl and layers.jsonl: one JSON object a line, the same names as in every logger."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FLUSH_BYTES = 1 << 16


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


def number(value: Any) -> Any:
    """The number that `plain` wrote."""
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file written by `Lines`; a last line that a kill cut short is left out."""
    if not path.is_file():
        return
    with path.open() as file:
        for line in file:
            if line.endswith("\n"):
                yield {k: number(v) for k, v in json.loads(line).items()}


class Lines:
    """An append-only file of JSON lines, buffered; `size` after a flush is where a resumed run continues."""

    def __init__(self, path: Path, keep: int = 0) -> None:
        """keep: bytes of an existing file that stand; what follows was written after the checkpoint."""
        self.file = path.open("r+b" if keep else "wb", buffering=FLUSH_BYTES)
        self.file.truncate(keep)
        self.file.seek(keep)

    def write(self, line: dict[str, Any]) -> None:
        self.file.write(json.dumps(plain(line), separators=(",", ":"), allow_nan=False).encode() + b"\n")

    def flush(self) -> int:
        self.file.flush()
        return self.file.tell()

    def close(self) -> None:
        self.file.close()
