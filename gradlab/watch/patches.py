"""Observe calls of functions that have no hooks, and restore the functions when nobody observes them any more.

Only attributes of classes and modules are replaced, never attributes of objects: objects are copied, pickled and saved
in checkpoints together with everything that hangs on them.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from torch.compiler import is_compiling

AfterCall = Callable[[Any, bool], None]
"""Takes the result of a call, and whether it raised."""
BeforeCall = Callable[[tuple[Any, ...], dict[str, Any]], "AfterCall | None"]
"""Takes the arguments of a call; may return what is to be called after it."""
FILE_NAME = f"{__file__} (importlib, _bootstrap)"
"""File name of the wrappers' code. `warnings` skips frames of files with both of these words in their names, so that
warnings of PyTorch name the same line as without a patch."""
LOCK = threading.RLock()


class Patch:
    """A replaced function and its observers."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name, self.original = owner, name, vars(owner)[name]
        self.observers: tuple[BeforeCall, ...] = ()
        setattr(owner, name, self.wrapper(self.original))

    def wrapper(self, original: Callable[..., Any]) -> Any:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():  # observing would break the graph that is being compiled
                return original(*args, **kwargs)
            observers = self.observers
            if len(observers) == 1:
                if (after := observers[0](args, kwargs)) is None:
                    return original(*args, **kwargs)
                pending = [after]
            else:
                pending = [after for before in observers if (after := before(args, kwargs)) is not None]
            try:
                result = original(*args, **kwargs)
            except BaseException:
                for after in reversed(pending):
                    after(None, True)
                raise
            for after in reversed(pending):
                after(result, False)
            return result

        wrapped: Any = call
        wrapped.__code__ = wrapped.__code__.replace(co_filename=FILE_NAME)
        return wrapped


PATCHES: dict[tuple[int, str], Patch] = {}
"""All patches in place: (id of the owner, attribute name) -> patch."""


def patch(owner: Any, name: str, observer: BeforeCall) -> Callable[[], None]:
    """Call an observer before each call of `owner.name`; returns the function that ends it."""
    key = (id(owner), name)
    with LOCK:
        each = PATCHES.get(key) or PATCHES.setdefault(key, Patch(owner, name))
        each.observers = (*each.observers, observer)

    def remove() -> None:
        with LOCK:
            each.observers = tuple(other for other in each.observers if other is not observer)
            if not each.observers and PATCHES.pop(key, None) is not None:
                setattr(each.owner, each.name, each.original)

    return remove


def defining_class(thing: object, name: str) -> type | None:
    """The class that a method of an object is defined in."""
    return next((c for c in type(thing).__mro__ if name in vars(c)), None)
