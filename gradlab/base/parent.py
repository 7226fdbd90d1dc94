"""A process that another one started for its own work ends with it: by a kill of its parent it would be left alone."""

from __future__ import annotations

import os
import threading
import time

STARTED_BY = os.getppid()
"""Known from gradlab's first import on: by the time that a rank asks, its parent may have been killed."""


def forked() -> None:
    """A child's parent is another one."""
    global STARTED_BY
    STARTED_BY = os.getppid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forked)


def end_with_parent(parent: int | None = None) -> None:
    """From now on, however often it is asked. parent: who started it, where that is known better."""
    if not any(t.name == follow.__name__ for t in threading.enumerate()):
        threading.Thread(target=follow, args=(parent or STARTED_BY,), name=follow.__name__, daemon=True).start()


def follow(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
