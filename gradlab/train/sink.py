"""What follows a run: the trainer hands every line of metrics to the sinks that its caller gave it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from gradlab.loggers.local import NAMES, RunFiles
from gradlab.train.state import TrainerState
from gradlab.update.recorder import Layers


class Sink:
    """Base of the sinks, which do nothing but what they override. On every rank."""

    def begin(self, trainer: TrainerState, kept: Sequence[int]) -> None:
        """The run begins. kept: bytes of metrics.jsonl and layers.jsonl that a resumed run leaves standing."""

    def write(self, metrics: dict[str, Any], layers: Layers | None) -> None:
        """Take in a line of metrics, and what was recorded of every layer then, if anything."""

    def save(self) -> dict[str, Any]:
        """A checkpoint is about to be written: what it holds of this sink. A resumed run repeats no earlier line."""
        return {}

    def close(self) -> None:
        """The run has ended, however it did."""


class FileSink(Sink):
    """Writes metrics.jsonl and layers.jsonl, on rank 0."""

    def __init__(self) -> None:
        self.files = RunFiles()

    def begin(self, trainer: TrainerState, kept: Sequence[int]) -> None:
        if trainer.world.main:
            header = trainer.observed.header() if trainer.config.monitor.layers else None
            self.files = RunFiles(trainer.folder, header, kept)
            for name, size, found in zip(NAMES, kept, self.files.kept, strict=True):
                if found < size:
                    why = f"{size - found} of the {size} bytes before the checkpoint are gone or cannot be read"
                    print(f"warning: {name}: {why}; the run continues after this gap", file=sys.stderr, flush=True)

    def write(self, metrics: dict[str, Any], layers: Layers | None) -> None:
        self.files.write(metrics, layers)

    def save(self) -> dict[str, Any]:
        return {"files": self.files.flush()}

    def close(self) -> None:
        self.files.close()


class FunctionSink(Sink):
    """Calls a function with every line."""

    def __init__(self, function: Callable[[dict[str, Any], Layers | None], Any]) -> None:
        self.function = function

    def write(self, metrics: dict[str, Any], layers: Layers | None) -> None:
        self.function(metrics, layers)
