"""What is seen while a run runs: a live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

PLAIN_SECONDS = 5.0
"""Seconds between two plain lines."""


def number(value: float) -> str:
    """A few digits, whatever the size."""
    return f"{value:.4g}"


class Progress:
    """Speaks on rank 0; silent elsewhere. `say` prints a sentence without breaking the live line."""

    def __init__(self, mode: str, main: bool) -> None:
        terminal = sys.stdout.isatty()
        self.mode = "none" if not main else ("live" if terminal else "plain") if mode == "auto" else mode
        self.main, self.total = main, 0
        """total: planned updates, once they are known, skipped ones among them."""
        self.beside = False
        """Whether skipped updates come on top of these, as where the number of applied ones ends the run."""
        self.live: Any = None
        self.last = time.monotonic()
        self.skipped = 0

    def start(self) -> None:
        if self.mode == "live":
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Live

            columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn("{task.fields[text]}"))
            self.live = Live(*columns, TimeRemainingColumn(compact=True), refresh_per_second=8)
            self.live.start()
            self.task = self.live.add_task("", total=self.total, text="")

    def log(self, metrics: dict[str, Any]) -> None:
        """Show one update's metrics, at most some times a second."""
        self.skipped += bool(metrics["update/skipped"])
        now = time.monotonic()
        if self.live and now - self.last > 0.1:
            self.live.update(self.task, completed=metrics["attempt"], total=self.planned, text=self.text(metrics))
            self.last = now
        elif self.mode == "plain" and now - self.last > PLAIN_SECONDS:
            print(f"update {metrics['attempt']}/{self.planned}  {self.text(metrics)}", flush=True)
            self.last = now

    @property
    def planned(self) -> int:
        return self.total + self.skipped * self.beside

    def text(self, metrics: dict[str, Any]) -> str:
        parts = [f"epoch {metrics['epoch']}", f"loss {number(metrics['train/loss'])}"]
        parts += [f"norm {number(metrics['grad/norm'])}"]
        if metrics["amp/scale"] != 1:
            parts.append(f"scale {number(metrics['amp/scale'])}")
        if metrics["clip/fraction"]:
            parts.append(f"clipped {metrics['clip/fraction']:.0%}")
        if self.skipped:
            parts.append(f"skipped {self.skipped}")
        return "  ".join(parts)

    def say(self, text: str) -> None:
        if not self.main or self.mode == "none":
            return
        if self.live:
            self.live.console.print(text, markup=False, highlight=False)
        else:
            print(text, flush=True)

    def finish(self, update: int) -> None:
        if self.live:
            self.live.update(self.task, completed=update)
            self.live.stop()
            self.live = None
