"""A watch between two calls of a trainer, in place of a `with` block."""

from __future__ import annotations

import atexit
from typing import Any

from gradlab.watch.session import Watch


class Held:
    """Begins and ends a watch; says at its end what was found. A trainer that breaks off ends it with the process."""

    def __init__(self, **given: Any) -> None:
        """given: what `Watch` takes beside the loop's own parts."""
        self.given = given
        self.watch: Watch | None = None
        self.active = False

    def begin(self, *parts: Any) -> None:
        """parts: model, optimizer, scaler, schedule."""
        self.end()
        self.watch = Watch(*parts, **self.given)
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
