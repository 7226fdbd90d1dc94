"""The hooks and patches of one watch: installed, guarded against failures of this package, and removed."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, Protocol

import torch
from torch.compiler import is_compiling

from gradlab.watch.events import Seen
from gradlab.watch.faults import Fault
from gradlab.watch.patches import AfterCall, BeforeCall, patch


class Instrumentation:
    """An exception inside this package ends the watch, or the one reader that has raised it (see `Seen.ask`), and never
    the training.

    Calls of one thread are observed: reading gradients that another thread computes would be a race. PyTorch's own
    threads, in which a device's backward pass runs, are not other threads in this sense.
    """

    def __init__(self, report: Callable[[str], None], on_fork: Callable[[], None], seen: Seen) -> None:
        """report: takes a message. on_fork: called in a forked copy of the process, where nothing is observed: it would
        write to the files of the first one. seen: takes what could not be observed."""
        self.report, self.on_fork, self.seen = report, on_fork, seen
        self.stack = ExitStack()
        self.patched: set[tuple[int, str, BeforeCall]] = set()
        self.active = self.broken = self.forked = False
        self.thread = 0
        self.thread_known = False
        """Whether an optimizer has stepped in the thread that is observed."""

    def start(self) -> None:
        self.active, self.thread_known, self.thread = True, False, threading.get_ident()
        RUNNING.add(self)

    def stop(self) -> None:
        """Remove all hooks and patches."""
        self.active = False
        RUNNING.discard(self)
        self.stack.close()
        self.patched.clear()

    def run_last(self, call: Callable[[], None]) -> None:
        """Make the last guarded call, in whatever thread the loop ends."""
        self.thread = threading.get_ident()
        self.guarded(call)

    def choose_thread(self) -> None:
        """An observed optimizer steps: at the first step, its thread is the one that trains."""
        if not self.thread_known and self.active:
            self.thread_known = True
            if in_program_thread():
                self.thread = threading.get_ident()

    def patch(self, owner: Any, name: str, observer: BeforeCall) -> None:
        """Observe calls of a function; a second request for the same observer does nothing."""
        if owner is None or name not in vars(owner) or (id(owner), name, observer) in self.patched:
            return
        self.patched.add((id(owner), name, observer))

        def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> AfterCall | None:
            if "self" in kwargs:  # a method may be called so too
                args, kwargs = (kwargs["self"], *args), {name: kwargs[name] for name in kwargs if name != "self"}
            after = self.guarded(observer, args, kwargs)
            return None if after is None else partial(self.guarded, after)

        self.stack.callback(patch(owner, name, before))

    def hook(
        self,
        register: Callable[..., Any],
        call: Callable[..., Any],
        only: Any = None,
        chooses_thread: bool = False,
        **options: Any,
    ) -> None:
        """Register a hook that makes a guarded call.

        only: call it if this is the first argument, and not a copy of it. chooses_thread: see `choose_thread`. options:
        passed to `register`.
        """
        self.stack.callback(register(Hook(self, call, only, chooses_thread), **options).remove)

    def guarded(self, call: Callable[..., Any], *args: Any) -> Any:
        """Call if this thread is observed; an exception other than `Fault` is reported, and ends the watch."""
        if self.broken or not self.active or is_recording():
            return None
        if threading.get_ident() != self.thread and in_program_thread():
            self.seen.other_thread = threading.current_thread().name
            return None
        try:
            return call(*args)
        except Fault:
            raise
        except Exception as error:
            self.broken = True
            self.seen.internal_error = f"{type(error).__name__}: {error}"
            self.report(f"stopped by an internal error: {self.seen.internal_error}")
            return None


def is_recording() -> bool:
    """Whether a CUDA graph records what is called: nothing is computed, and reading a value would end the recording."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def in_program_thread() -> bool:
    """Whether this thread was started by the program, and not by PyTorch."""
    here = threading.get_ident()
    return any(t.ident == here and not isinstance(t, threading._DummyThread) for t in threading.enumerate())


RUNNING: weakref.WeakSet[Instrumentation] = weakref.WeakSet()


def after_fork() -> None:
    """Runs in a forked copy of the process."""
    for each in list(RUNNING):
        each.active, each.forked = False, True
        each.on_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=after_fork)


class Observer(Protocol):
    """Observes one kind of call."""

    def install(self, instrumentation: Instrumentation) -> None: ...


class Hook:
    """A hook that may be copied and pickled with the object it hangs on, and has no effect in the copy."""

    def __init__(
        self, instrumentation: Instrumentation, call: Callable[..., Any], only: Any, chooses_thread: bool
    ) -> None:
        self.parts = (instrumentation, call, only, chooses_thread)

    def __call__(self, *args: Any) -> None:
        if is_compiling():
            return  # a hook would break the graph that is being compiled
        instrumentation, call, only, chooses_thread = self.parts
        if only is None or args[0] is only:
            if chooses_thread:
                instrumentation.choose_thread()
            instrumentation.guarded(call, *args)

    def __reduce__(self) -> tuple[Any, ...]:
        return unpickled_hook, ()

    def __deepcopy__(self, memo: Any) -> Any:
        return no_effect


def no_effect(*args: Any) -> None:
    """A hook without effect."""


def unpickled_hook() -> Any:
    return no_effect
