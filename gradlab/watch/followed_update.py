"""The calls of single updates: shown to readers, which find lines at which nothing else is called."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch.compiler import is_compiling
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode

from gradlab.measure.attempt import flags
from gradlab.watch.events import Seen, Violation
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

FOLLOWED = (1, 5)
"""Updates of an optimizer after which the next one may be followed."""
LATE = 40
"""The same of readers that ask what a loop does once it has warmed up."""
FLAT = {f"{name}{end}" for name in ("round", "floor", "ceil", "trunc", "fix", "sign", "sgn") for end in ("", "_")}
"""Functions whose gradient is zero wherever they have one."""
NETWORKS = {"linear", "matmul", "__matmul__", "mm", "bmm", "addmm", "einsum", "bilinear", "embedding", "embedding_bag"}
NETWORKS |= {"conv1d", "conv2d", "conv3d", "lstm", "gru", "rnn_tanh", "rnn_relu"}
"""Functions of weights and activations, or of weights and indices."""
PLACES = (("input", "query"), ("other", "mat2", "weight", "key"), ("value",))
"""Names of the first arguments of functions. Those that are not written in Python are followed as they are called."""
MAX_CALLS = 20_000
"""Calls that are followed at most."""


class Reader(Protocol):
    """Finds mistakes in the calls of an update."""

    def begin(self, tracker: OptimizerTracker, without: list[torch.Tensor], flat: list[torch.Tensor]) -> bool:
        """An optimizer has stepped: is its next update of interest?

        without: weights that had no gradient so far. flat: weights whose gradient was exactly zero.
        """

    def follow(self, name: str, func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        """A call has returned. Some read the graph alone."""
        return

    def at_backward(self, roots: list[torch.Tensor]) -> None:
        """A backward pass begins. Some read the calls alone."""
        return

    def end(self) -> Iterator[Violation]:
        """The update is over: what was found; no tensor is kept. Some are asked at the end of the loop alone."""
        yield from ()


class AskingReader(Reader, Protocol):
    """One that may want the update after the one that it has read, too."""

    @property
    def is_pending(self) -> bool: ...


class FollowedUpdate(TorchFunctionMode):
    """Computes nothing, and is entered for single updates."""

    def __init__(self, readers: Sequence[Reader], seen: Seen) -> None:
        """seen: takes which readers have raised; these are not called again."""
        self.all_readers, self.seen = readers, seen
        self.readers: list[Reader] = []
        """Those that follow this update."""
        self.follows: list[Callable[..., None]] = []
        """Their methods that are shown each call."""
        self.tracker: OptimizerTracker | None = None
        """The optimizer whose update is followed."""
        self.only: Reader | None = None
        """The reader that reads the rest of an update."""
        self.thread = self.num_calls = 0
        self.guarded: Callable[..., Any] = lambda call, *args: call(*args)
        """Makes a call of this package, which must not end the training."""

    def begin(self, tracker: OptimizerTracker, without: Iterable[torch.Tensor], only: Reader | None = None) -> None:
        """An optimizer has stepped, and these weights never had a gradient. only: the one reader of the rest of an
        update."""
        if self.tracker is not None or tracker.sharded:
            return
        if has_compiled() or _get_current_function_mode_stack():
            return
        self.only, weights = only, list(without)
        params = tracker.params if only is None else []
        dense = [(p, g) for p in params if (g := p.grad) is not None and not g.is_sparse]
        flat = [p for (p, _), has in zip(dense, flags([g.any() for _, g in dense]), strict=True) if not has]
        readers = self.all_readers if only is None else [only]
        self.readers = [each for each in readers if self.seen.ask(each.begin, tracker, weights, flat) or only]
        if self.readers:
            self.follows = [each.follow for each in self.readers if type(each).follow is not Reader.follow]
            self.tracker, self.thread, self.num_calls = tracker, threading.get_ident(), 0
            _push_mode(self)

    def end(self, tracker: OptimizerTracker | None = None) -> tuple[OptimizerTracker | None, list[Violation]]:
        """The update is over (tracker: of this optimizer), or the watch: whose it was, and what was found."""
        if self.tracker is None or tracker not in (None, self.tracker) or self.thread != threading.get_ident():
            return None, []
        followed, self.tracker, self.only = self.tracker, None, None
        above = []
        while self in _get_current_function_mode_stack():
            above.append(_pop_mode())
        for mode in reversed(above):
            if mode is not self:
                _push_mode(mode)
        found = [each for reader in self.readers for each in self.seen.ask(reader.end, default=[])]
        self.readers, self.follows = [], []
        self.all_readers = [each for each in self.all_readers if not self.seen.is_off(each)]  # they keep tensors
        return followed, found

    def at_backward(self, roots: list[torch.Tensor]) -> None:
        for reader in self.readers if self.tracker is not None else ():
            self.seen.ask(reader.at_backward, roots)
        if self.seen.switched_off:
            self.leave_out_ended()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if is_compiling():  # whatever is called here would be compiled too
            return result
        if self.num_calls < MAX_CALLS and self.tracker is not None and not is_transformed():
            self.num_calls += 1
            self.guarded(self.show, func, *in_places(args, kwargs), result)
        return result

    def show(self, func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        name = getattr(func, "__name__", "")
        for follow in self.follows:
            try:
                follow(name, func, args, kwargs, result)
            except Exception as error:
                self.seen.switch_off(follow, error)
                self.leave_out_ended()

    def leave_out_ended(self) -> None:
        """Readers that have raised are shown no more calls."""
        self.follows = [each for each in self.follows if not self.seen.is_off(getattr(each, "__self__", each))]


def in_places(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call, the first ones in their places also where they are given by name."""
    placed, named = list(args), dict(kwargs)
    for names in PLACES[len(placed) :] if named else ():
        if (name := next((each for each in names if each in named), None)) is None:
            break
        placed.append(named.pop(name))
    return placed, named


def argument(args: list[Any], kwargs: dict[str, Any], place: int, name: str) -> Any:
    """One that is given in its place or by name; None if it is not given."""
    return args[place] if len(args) > place else kwargs.get(name)


def has_compiled() -> bool:
    """Whether anything was compiled in this process: under a mode it would be compiled again, with the mode in it.

    So are `torch.cond` and `flex_attention`, which call the compiler themselves.
    """
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["frames"] or dynamo.counters["stats"])


def is_transformed() -> bool:
    """Whether `torch.func` calls it: a tensor under vmap has no batch, and its values cannot be read."""
    return torch._C._functorch.maybe_current_level() is not None  # type: ignore[attr-defined]


def tensors_in(values: Iterable[Any]) -> list[torch.Tensor]:
    """Tensors, also those in lists, tuples and dictionaries."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += tensors_in(value)
        elif isinstance(value, dict):
            found += tensors_in(value.values())
    return found
