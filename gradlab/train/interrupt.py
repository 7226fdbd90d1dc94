"""Ctrl-C, or SIGTERM as a scheduler sends it: the run ends after the update under way; a second one ends it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gradlab.base.signals import handled

ASKED = threading.Event()
"""Set when a run of this process is asked to stop, perhaps at its very end: then what follows it stops."""


class Interrupt:
    """Whether the user, or a scheduler, asked the run to stop."""

    def __init__(self) -> None:
        self.event = threading.Event()

    @property
    def asked(self) -> bool:
        return self.event.is_set()

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Take the signals meanwhile, in the main thread."""
        try:
            with handled(dict.fromkeys((signal.SIGINT, signal.SIGTERM), self.ask)):
                yield
        finally:
            if self.asked:
                ASKED.set()

    def ask(self, number: int, frame: Any) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.event.set()
