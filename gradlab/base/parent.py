"""A process that another one started for its own work ends with it: by a kill of its parent it would be left alone."""

from __future__ import annotations

import os
import threading
import time


def end_with_parent(parent: int | None = None) -> None:
    """From now on, however often it is asked. parent: who started it, and may have been killed before."""
    if not any(t.name == follow.__name__ for t in threading.enumerate()):
        threading.Thread(target=follow, args=(parent or os.getppid(),), name=follow.__name__, daemon=True).start()


def follow(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
