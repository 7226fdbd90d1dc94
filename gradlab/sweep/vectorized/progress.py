"""Progress of a sweep: a live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time

FIRST_SECONDS = 4.0
"""Seconds before the first plain line."""
PLAIN_SECONDS = 10.0
"""Seconds between two plain lines."""


class SweepProgress:
    """Counts ended jobs, and updates, from which the remaining time is estimated."""

    def __init__(self, jobs: int, updates: int) -> None:
        """updates: of all jobs, if none ends early."""
        self.jobs, self.updates = jobs, max(updates, 1)
        self.done = self.tried = 0
        self.began = time.monotonic()
        self.last = self.began + FIRST_SECONDS - PLAIN_SECONDS
        self.live = sys.stdout.isatty()

    def made(self, updates: int) -> None:
        """Count updates, over all lanes."""
        self.tried += updates
        self.show()

    def ended(self) -> None:
        self.done += 1
        self.show()

    def show(self) -> None:
        now = time.monotonic()
        if now - self.last < (0.2 if self.live else PLAIN_SECONDS):
            return
        self.last = now
        print(f"\r\x1b[K{self.text()}" if self.live else self.text(), end="" if self.live else "\n", flush=True)

    def text(self) -> str:
        passed = time.monotonic() - self.began
        share = max(self.tried / self.updates, self.done / self.jobs)
        left = f", {passed / share * (1 - share):.0f} s left at most" if share else ""
        return f"{self.done} of {self.jobs} jobs, {min(share, 1):.0%} of the updates, {passed:.0f} s{left}"

    def finish(self) -> None:
        if self.live:
            print("\r\x1b[K", end="", flush=True)
