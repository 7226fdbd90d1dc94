"""The loggers of a run, as one; one that fails costs the run and the others nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gradlab.base.option import Invalid
from gradlab.loggers.base import About, LoggerOption, RunLogger
from gradlab.update.recorder import Layers

TOGETHER = 64
"""Lines logged at a time: after an update the loggers are in no cache, and a line by itself takes 5x as long."""
SECONDS = 2.0
"""How long a line waits at most for others."""


class Loggers:
    """Every logger that `logger=` names, in that order."""

    def __init__(self, options: Mapping[str, LoggerOption], about: About) -> None:
        self.loggers: dict[str, RunLogger] = {}
        self.waiting: list[tuple[dict[str, Any], Layers | None]] = []
        self.logged = time.monotonic()
        for name, option in options.items():
            try:
                logger = option.build(about)
            except Invalid:
                raise
            except Exception as error:
                report_failure(name, error)
            else:
                self.loggers |= {name: logger} if logger is not None else {}

    def log(self, metrics: dict[str, Any], layers: Layers | None) -> None:
        """Take in a line, which may not be changed afterwards."""
        if not self.loggers:
            return
        self.waiting.append((metrics, layers))
        if len(self.waiting) >= TOGETHER or time.monotonic() - self.logged > SECONDS:
            self.catch_up()

    def catch_up(self) -> None:
        """Log the lines that wait."""
        waiting, self.waiting = self.waiting, []

        def log(logger: RunLogger) -> None:
            for line in waiting:
                logger.log(*line)

        self.each(log)
        self.logged = time.monotonic()

    def finish(self, content: dict[str, Any], folder: Path) -> None:
        """content: of diagnosis.json."""
        self.catch_up()
        self.each(lambda logger: logger.finish(content, folder))

    def each(self, do: Callable[[RunLogger], None]) -> None:
        """Have every logger do the same; one that cannot is left out from then on."""
        for name, logger in list(self.loggers.items()):
            try:
                do(logger)
            except Exception as error:
                del self.loggers[name]
                report_failure(name, error)


def report_failure(name: str, error: Exception) -> None:
    """Say once that a logger failed."""
    why = " ".join(str(error).split())[:200] or type(error).__name__
    print(f"gradlab: logger {name} failed, and the run continues without it: {why}", file=sys.stderr, flush=True)
