"""metrics.jsonl and layers.jsonl: one JSON object a line, the same names as in every logger."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gradlab.base.json_lines import Lines, intact, read_lines

NAMES = ("metrics.jsonl", "layers.jsonl")


def read_run(folder: Path, kept: Sequence[float] = (math.inf, math.inf)) -> Iterator[tuple[dict[str, Any], Any]]:
    """Each line of metrics with what was recorded of layers then, if anything; kept: bytes of each file to read."""
    layers = {line.pop("attempt", None): line for line in read_lines(folder / "layers.jsonl", kept[1])}
    for line in read_lines(folder / "metrics.jsonl", kept[0]):
        yield line, layers.get(line["attempt"]) if "train/loss" in line else None


class RunFiles:
    """metrics.jsonl and, where layers are recorded, layers.jsonl; without a folder, nothing."""

    def __init__(
        self, folder: Path | None = None, header: dict[str, Any] | None = None, keep: Sequence[int] = (0, 0)
    ) -> None:
        """header: what is recorded of layers. keep: bytes of each file that a resumed run leaves standing."""
        self.metrics = self.layers = None
        self.kept = [0, 0]
        """Bytes of each file that were left standing: fewer than asked for where some could not be read."""
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        keep = self.kept = [intact(folder / name, size) for name, size in zip(NAMES, keep, strict=True)]
        self.metrics = Lines(folder / NAMES[0], keep[0])
        if header is not None:
            self.layers = Lines(folder / NAMES[1], keep[1])
            if not keep[1]:
                self.layers.write(header)

    def write(self, metrics: dict[str, Any], layers: dict[str, list[Any]] | None) -> None:
        if self.metrics is not None:
            self.metrics.write(metrics)
        if self.layers is not None and layers is not None:
            self.layers.write({"attempt": metrics["attempt"], **layers})

    def flush(self) -> list[int]:
        """Bytes of each file so far, all of them handed to the system."""
        return [lines.flush() if lines else 0 for lines in (self.metrics, self.layers)]

    def abandon(self) -> None:
        for lines in (self.metrics, self.layers):
            if lines is not None:
                lines.abandon()

    def close(self) -> None:
        for lines in (self.metrics, self.layers):
            if lines is not None:
                lines.close()
