"""Handlers of signals for as long as a block runs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

Handler = Callable[[int, Any], Any] | int | None
"""What `signal.signal` takes and returns."""


@contextmanager
def handled(handlers: Mapping[int, Handler]) -> Iterator[Mapping[int, Handler]]:
    """Have these handlers meanwhile, where Python lets us: in the main thread. Gives those of before."""
    main = threading.current_thread() is threading.main_thread()
    before: dict[int, Handler] = {n: signal.signal(n, handler) for n, handler in handlers.items()} if main else {}
    try:
        yield before
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
