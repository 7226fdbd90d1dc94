"""The loggers of a run, as one; one that fails costs the run and the others nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gradlab.loggers.options import About, Layers, LoggerOption, Sink
from gradlab.option import Invalid


class Loggers:
    """Every logger that `logger=` names, in that order."""

    def __init__(self, options: Mapping[str, LoggerOption], about: About) -> None:
        self.sinks: dict[str, Sink] = {}
        for name, option in options.items():
            try:
                sink = option.build(about)
            except Invalid:
                raise
            except Exception as error:
                told(name, error)
            else:
                self.sinks |= {name: sink} if sink is not None else {}

    def log(self, metrics: dict[str, Any], layers: Layers | None) -> None:
        self.each(lambda sink: sink.log(metrics, layers))

    def finish(self, content: dict[str, Any], folder: Path) -> None:
        """content: of diagnosis.json."""
        self.each(lambda sink: sink.finish(content, folder))

    def each(self, do: Callable[[Sink], None]) -> None:
        """Have every logger do the same; one that cannot is left out from then on."""
        for name, sink in list(self.sinks.items()):
            try:
                do(sink)
            except Exception as error:
                del self.sinks[name]
                told(name, error)


def told(name: str, error: Exception) -> None:
    """Say once that a logger failed."""
    why = " ".join(str(error).split())[:200] or type(error).__name__
    print(f"gradlab: logger {name} failed, and the run goes on without it: {why}", file=sys.stderr, flush=True)
