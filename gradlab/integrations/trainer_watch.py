"""A watch that begins and ends in callbacks of a trainer, in place of a `with` block."""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

from gradlab.watch.arguments import check_names
from gradlab.watch.call_site import call_site, definition_site
from gradlab.watch.watch import Watch

TRAINER_PARTS = ("model", "optimizer", "scaler", "schedule")
"""Arguments of `gradlab.watch` that come from the trainer, and not from the user."""


class WatchOptions(TypedDict, total=False):
    """The arguments of `gradlab.watch` that do not come from the trainer."""

    folder: str | Path | None
    strict: bool
    every: int
    step_every: int
    quiet: bool


class TrainerWatch:
    """Begins and ends a watch, and prints its report. If a trainer fails without a callback, the exit of the process
    ends it."""

    def __init__(self, **options: Unpack[WatchOptions]) -> None:
        check_names(Watch.__init__, options, without=TRAINER_PARTS)
        self.options = options
        self.watch: Watch | None = None
        self.active = False

    def begin(self, *parts: Any, user_functions: Sequence[Any] = ()) -> None:
        """parts: model, optimizer, scaler, schedule. user_functions: functions that the trainer calls; the first that
        the user has defined is reported in place of lines inside the trainer."""
        self.end()
        self.watch = Watch(*parts, **self.options)
        self.watch.loop.trainer_site = call_site()
        self.watch.loop.user_site = next((site for each in user_functions if (site := definition_site(each))), None)
        self.watch.__enter__()
        self.active = True
        atexit.register(self.end)

    def end(self, error: BaseException | None = None) -> None:
        """End the watch, if one is active. error: the exception that ended the training."""
        if not self.active or self.watch is None:
            return
        self.active = False
        atexit.unregister(self.end)
        self.watch.__exit__(type(error) if error else None, error, None)
        if self.watch.main and not self.watch.quiet:
            print(self.watch.report(), flush=True)
