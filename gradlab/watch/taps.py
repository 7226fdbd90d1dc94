"""Listen to calls of functions that have no hooks of their own; all is as it was when nobody listens any more.

What is replaced is an attribute of a class or module, and never of an object: those are copied, pickled and put into
checkpoints with all that hangs on them.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from torch.compiler import is_compiling

After = Callable[[Any, bool], None]
"""Told of the result, and whether the call raised."""
Listener = Callable[[tuple[Any, ...], dict[str, Any]], "After | None"]
"""Told of the arguments before the call."""
UNSEEN = f"{__file__} (importlib, _bootstrap)"
"""`warnings` counts no frames of files with both of these words in their names: PyTorch's own warnings name the line
that they would name without a tap in between."""
LOCK = threading.RLock()


class Tap:
    """A replaced function, and who listens."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name, self.original = owner, name, vars(owner)[name]
        self.listeners: tuple[Listener, ...] = ()
        setattr(owner, name, self.heard(self.original))

    def heard(self, original: Callable[..., Any]) -> Any:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():  # what is compiled has nobody listen to it: that would only break its graph
                return original(*args, **kwargs)
            waiting = [after for listen in self.listeners if (after := listen(args, kwargs)) is not None]
            try:
                result = original(*args, **kwargs)
            except BaseException:
                for after in reversed(waiting):
                    after(None, True)
                raise
            for after in reversed(waiting):
                after(result, False)
            return result

        heard: Any = call
        heard.__code__ = heard.__code__.replace(co_filename=UNSEEN)
        return heard


TAPS: dict[tuple[int, str], Tap] = {}


def listen(owner: Any, name: str, listener: Listener) -> Callable[[], None]:
    """Have a listener told of each call of `owner.name`; returns what ends that."""
    key = (id(owner), name)
    with LOCK:
        tap = TAPS.get(key) or TAPS.setdefault(key, Tap(owner, name))
        tap.listeners = (*tap.listeners, listener)

    def leave() -> None:
        with LOCK:
            tap.listeners = tuple(each for each in tap.listeners if each is not listener)
            if not tap.listeners and TAPS.pop(key, None) is not None:
                setattr(tap.owner, tap.name, tap.original)

    return leave


def owner_of(thing: object, name: str) -> type | None:
    """The class that a method of an object comes from."""
    return next((c for c in type(thing).__mro__ if name in vars(c)), None)
