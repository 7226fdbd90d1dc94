"""A worker process ends with the process that started it; otherwise it would outlive a parent that is killed."""

from __future__ import annotations

import os
import threading
import time

STARTED_BY = os.getppid()
"""The parent when gradlab is first imported: by the time that a rank asks, it may have been killed."""


def forked() -> None:
    """After a fork, the child has another parent."""
    global STARTED_BY
    STARTED_BY = os.getppid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forked)


def end_with_parent(parent: int | None = None) -> None:
    """End this process once its parent has ended. parent: the process that started this one, where that is known."""
    if not any(t.name == follow.__name__ for t in threading.enumerate()):
        threading.Thread(target=follow, args=(parent or STARTED_BY,), name=follow.__name__, daemon=True).start()


def follow(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
