"""Who is told of what: hooks and taps of one watch, and what happens when a listener fails."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Protocol

import torch

from gradlab.watch.faults import Fault
from gradlab.watch.taps import After, listen

What = Callable[[tuple[Any, ...], dict[str, Any]], "After | None"]


class Listening:
    """A mistake of this package's own ends the watching, and not the training.

    Calls of one thread are followed: looking at gradients that another one computes would be a race. Threads of
    PyTorch's own, in which a device's backward pass runs, are not those of others.
    """

    def __init__(self, say: Callable[[str], None], left: Callable[[], None]) -> None:
        """left: called in a copy of the process, where nothing is followed: it would write to the first one's files."""
        self.say, self.left = say, left
        self.stack = ExitStack()
        self.tapped: set[tuple[int, str, What]] = set()
        self.active = self.broken = self.copied = False
        self.thread = 0
        self.led = False
        """Whether an optimizer has stepped in the thread that is followed."""

    def begin(self) -> None:
        self.active, self.led, self.thread = True, False, threading.get_ident()
        UNDER_WAY.add(self)

    def end(self) -> None:
        """All is as it was."""
        self.active = False
        UNDER_WAY.discard(self)
        self.stack.close()
        self.tapped.clear()

    def finish(self, what: Callable[[], None]) -> None:
        """The last that is told, in whatever thread the loop ends."""
        self.thread = threading.get_ident()
        self.guarded(what)

    def lead(self) -> None:
        """A followed optimizer steps: if it is the first time, this is the thread that trains."""
        if not self.led and self.active:
            self.led = True
            if of_program():
                self.thread = threading.get_ident()

    def tap(self, owner: Any, name: str, what: What) -> None:
        """Listen to a function, once."""
        if owner is None or name not in vars(owner) or (id(owner), name, what) in self.tapped:
            return
        self.tapped.add((id(owner), name, what))

        def told(args: tuple[Any, ...], kwargs: dict[str, Any]) -> After | None:
            after = self.guarded(what, args, kwargs)
            return None if after is None else lambda result, error: self.guarded(after, result, error)

        self.stack.callback(listen(owner, name, told))

    def hook(
        self,
        register: Callable[..., Any],
        what: Callable[..., Any],
        only: Any = None,
        leads: bool = False,
        **given: Any,
    ) -> None:
        """Have a hook call a function; only: for calls whose first argument this is, and not a copy of it. leads: see
        `lead`."""
        self.stack.callback(register(Hook(self, what, only, leads), **given).remove)

    def guarded(self, what: Callable[..., Any], *args: Any) -> Any:
        if self.broken or not self.active:
            return None
        if threading.get_ident() != self.thread and of_program():
            return None
        try:
            return what(*args)
        except Fault:
            raise
        except Exception as error:
            self.broken = True
            self.say(f"ended by a mistake of its own: {type(error).__name__}: {error}")
            return None


def of_program() -> bool:
    """Whether this thread is the program's, and not one of PyTorch's."""
    here = threading.get_ident()
    return any(t.ident == here and not isinstance(t, threading._DummyThread) for t in threading.enumerate())


UNDER_WAY: weakref.WeakSet[Listening] = weakref.WeakSet()


def copied() -> None:
    """In a copy of the process."""
    for listening in list(UNDER_WAY):
        listening.active, listening.copied = False, True
        listening.left()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=copied)


class Listener(Protocol):
    """Listens to one kind of call."""

    def listen(self, to: Listening) -> None: ...


class Hook:
    """A hook that can be copied and pickled with what it hangs on, and does nothing there."""

    def __init__(self, listening: Listening, what: Callable[..., Any], only: Any, leads: bool) -> None:
        self.call = (listening, what, only, leads)

    def __call__(self, *args: Any) -> None:
        if torch.compiler.is_compiling():
            return  # what is compiled runs without hooks: they would only break its graph
        listening, what, only, leads = self.call
        if only is None or args[0] is only:
            if leads:
                listening.lead()
            listening.guarded(what, *args)

    def __reduce__(self) -> tuple[Any, ...]:
        return silent, ()

    def __deepcopy__(self, memo: Any) -> Any:
        return nothing


def nothing(*args: Any) -> None:
    """A hook without effect."""


def silent() -> Any:
    return nothing
