"""A watch between two calls of a trainer, in place of a `with` block."""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from typing import Any

from gradlab.watch.parts import check
from gradlab.watch.session import Watch
from gradlab.watch.where import site, written

PARTS = ("model", "optimizer", "scaler", "schedule")
"""What a trainer has, and is not given."""


class Held:
    """Begins and ends a watch; says at its end what was found. A trainer that breaks off ends it with the process."""

    def __init__(self, **given: Any) -> None:
        """given: what `Watch` takes beside the loop's own parts."""
        check(Watch.__init__, given, without=PARTS)
        self.given = given
        self.watch: Watch | None = None
        self.active = False

    def begin(self, *parts: Any, called: Sequence[Any] = ()) -> None:
        """parts: model, optimizer, scaler, schedule. called: functions that the trainer calls, the first that is the
        user's own is told for what happens in the trainer itself."""
        self.end()
        self.watch = Watch(*parts, **self.given)
        self.watch.loop.outer = site()
        self.watch.loop.home = next((where for each in called if (where := written(each))), None)
        self.watch.__enter__()
        self.active = True
        atexit.register(self.end)

    def end(self, error: BaseException | None = None) -> None:
        if not self.active or self.watch is None:
            return
        self.active = False
        atexit.unregister(self.end)
        self.watch.__exit__(type(error) if error else None, error, None)
        if self.watch.main and not self.watch.quiet:
            print(self.watch.report(), flush=True)
