"""Who is told of what: hooks and taps of one watch, and what happens when a listener fails."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Protocol

import torch

from gradlab.watch.faults import Fault
from gradlab.watch.taps import After, listen

What = Callable[[tuple[Any, ...], dict[str, Any]], "After | None"]


class Listening:
    """A mistake of this package's own ends the watching, and not the training."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.stack = ExitStack()
        self.tapped: set[tuple[int, str, What]] = set()
        self.active = self.broken = False

    def end(self) -> None:
        """All is as it was."""
        self.active = False
        self.stack.close()
        self.tapped.clear()

    def tap(self, owner: Any, name: str, what: What) -> None:
        """Listen to a function, once."""
        if owner is None or name not in vars(owner) or (id(owner), name, what) in self.tapped:
            return
        self.tapped.add((id(owner), name, what))

        def told(args: tuple[Any, ...], kwargs: dict[str, Any]) -> After | None:
            after = self.guarded(what, args, kwargs)
            return None if after is None else lambda result, error: self.guarded(after, result, error)

        self.stack.callback(listen(owner, name, told))

    def hook(self, register: Callable[..., Any], what: Callable[..., Any], only: Any = None, **given: Any) -> None:
        """Have a hook call a function; only: for calls whose first argument this is, and not a copy of it."""
        self.stack.callback(register(Hook(self, what, only), **given).remove)

    def guarded(self, what: Callable[..., Any], *args: Any) -> Any:
        if self.broken or not self.active:
            return None
        try:
            return what(*args)
        except Fault:
            raise
        except Exception as error:
            self.broken = True
            self.say(f"ended by a mistake of its own: {type(error).__name__}: {error}")
            return None


class Listener(Protocol):
    """Listens to one kind of call."""

    def listen(self, to: Listening) -> None: ...


class Hook:
    """A hook that can be copied and pickled with what it hangs on, and does nothing there."""

    def __init__(self, listening: Listening, what: Callable[..., Any], only: Any) -> None:
        self.call = (listening, what, only)

    def __call__(self, *args: Any) -> None:
        if torch.compiler.is_compiling():
            return  # what is compiled runs without hooks: they would only break its graph
        listening, what, only = self.call
        if only is None or args[0] is only:
            listening.guarded(what, *args)

    def __reduce__(self) -> tuple[Any, ...]:
        return silent, ()

    def __deepcopy__(self, memo: Any) -> Any:
        return nothing


def nothing(*args: Any) -> None:
    """A hook without effect."""


def silent() -> Any:
    return nothing
