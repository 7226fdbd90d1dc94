"""Where activations are flat, so that no gradient passes: by operation and by call, whichever module it is in.

An `F.relu` in a forward method, a module that two layers share, and a user's clamp are seen as `nn.ReLU` is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gradlab.measure.activations import flat, tensor_of
from gradlab.measure.units import Layout, layout, places_units, unit_dim

SMOOTH = ("sigmoid", "tanh")
"""Operations that are flat where their slope is small."""
LAYERS = {"mm", "addmm", "bmm", "baddbmm", "convolution", "embedding", "native_batch_norm", "native_layer_norm"}
"""What computes with weights: an operation before the first of them works on the data."""


NOTHING = 1e-5
"""Difference between samples, over the largest number, up to which they are the same but for rounding."""
OFTEN = 5
"""Layers for each of which a model that normalises does so once, and one with residual paths adds."""


@dataclass
class FlatCall:
    """One call of an activation in a forward pass, over all passes that were watched."""

    module: str
    """The innermost module in whose code it is."""
    kind: str
    """Class of that module."""
    operation: str
    ends: tuple[float, ...]
    """The values at which a piecewise linear one is flat; empty for a smooth one."""
    flat: torch.Tensor
    """(units,) bool, whether a unit is at one of the ends for every sample; of a smooth one () float64, the share of
    elements where it is flat."""
    low: torch.Tensor
    """The same as `flat`, at the lower end alone."""
    same: torch.Tensor
    """() bool, whether what goes in is the same in every row of its first dimension."""
    rows: int
    """Length of that dimension, over all passes."""
    number: int = 1
    """Which call of this operation in this module."""
    passes: int = 1

    @property
    def values(self) -> torch.Tensor:
        """(3,) float64: shares of units, or elements, of `flat` and of `low`; and `same`."""
        return torch.stack([self.flat.double().mean(), self.low.double().mean(), self.same.double()])

    def also(self, other: FlatCall) -> None:
        """Add the same call of a later pass."""
        self.passes += 1
        self.same, self.rows = self.same & other.same, self.rows + other.rows
        if self.ends:
            self.flat, self.low = self.flat & other.flat, self.low & other.low
        else:
            self.flat = self.flat + (other.flat - self.flat) / self.passes


class FlatUnits(TorchDispatchMode):
    """Notes every call of an activation in a forward pass."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled under it. PyTorch would import its compiler to say so, and do so again at every op."""
        return False

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.model = model
        self.calls: list[FlatCall] = []
        self.stack: list[tuple[str, torch.nn.Module]] = [("", model)]
        self.before: Layout | None = None
        self.begun = False
        self.at: list[FlatCall] = []
        self.last: torch.Tensor | None = None
        """What the latest of these calls returned, if it was a smooth one, while it is watched."""
        self.seen = Counter[str]()
        """Calls of layers, normalisations, and sums of two tensors of one shape."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch one forward pass. What several have in common is put together."""
        self.at, self.begun, self.before, self.stack = [], False, None, [("", self.model)]
        with ExitStack() as hooks, self:
            for name, module in self.model.named_modules():
                if not name:
                    continue  # it may be called already: its hooks must not change
                hooks.callback(module.register_forward_pre_hook(partial(self.enter, name)).remove)
                hooks.callback(module.register_forward_hook(self.leave, always_call=True).remove)
            yield
        self.last = None
        if not self.calls:
            self.calls = self.at
        elif [called(c) for c in self.calls] == [called(c) for c in self.at]:
            for call, other in zip(self.calls, self.at, strict=True):
                call.also(other)

    def enter(self, name: str, module: torch.nn.Module, inputs: Any) -> None:
        self.stack.append((name, module))

    def leave(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        self.stack.pop()
        if places_units(module) and (y := tensor_of(output)) is not None:
            self.before, self.begun = layout(module, y), True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.look(func.overloadpacket.__name__.rstrip("_"), args, out)
        return out

    def look(self, name: str, args: Sequence[Any], out: Any) -> None:
        """An operation has returned."""
        if what := self.kind(name, args):
            self.seen[what] += 1
        if name in LAYERS:
            self.begun = True
        elif self.begun and (name in SMOOTH or (found := ends(name, args)) is not None):
            y = tensor_of(out)
            if y is not None and y.dim() > 1 and y.numel():
                self.note(name, () if name in SMOOTH else found or (), y, args[0].detach().float())

    def kind(self, name: str, args: Sequence[Any]) -> str:
        """What an operation is in the network, if one of those that are counted."""
        if name == "rsqrt" or ("norm" in name and not name.startswith("linalg")):
            return "normalised"
        if name == "add" and self.begun and all(isinstance(a, torch.Tensor) for a in args[:2]):
            return "residual" if args[0].dim() > 1 and args[0].shape == args[1].shape else ""
        return "layer" if name in LAYERS else ""

    def has(self, what: str) -> bool:
        """Whether one of every few layers has such an operation."""
        return 0 < self.seen["layer"] <= OFTEN * self.seen[what]

    def note(self, operation: str, ends: tuple[float, ...], y: torch.Tensor, x: torch.Tensor) -> None:
        self.last = None if ends else y.detach()
        (name, module), y = self.stack[-1], y.detach().float()
        number = 1 + sum((c.module, c.operation) == (name, operation) for c in self.at)
        both = piecewise(ends, y, unit_dim(y, self.before)) if ends else (flat(operation, y).double().mean(),) * 2
        same = (x - x[:1]).abs().amax() <= NOTHING * x.abs().amax()
        self.at.append(FlatCall(name, type(module).__name__, operation, ends, *both, same, len(x), number))


def ends(operation: str, args: Sequence[Any]) -> tuple[float, ...] | None:
    """The values at which an operation is flat; None where it is no activation."""
    given = [a if isinstance(a, int | float) else None for a in args[1:]]
    if operation == "relu":
        return (0.0,)
    if operation == "threshold":
        return (float(given[1]),) if len(given) > 1 and given[1] is not None else None
    if operation in ("clamp", "clamp_min"):  # of a lower bound of 0; others limit something else
        return tuple(float(g) for g in given if g is not None) if given and given[0] == 0 else None
    if operation == "hardtanh":
        low, high = [*given, *(-1.0, 1.0)[len(given) :]][:2]
        return (float(low), float(high)) if low is not None and high is not None else None
    return (0.0, 1.0) if operation == "hardsigmoid" else None


def piecewise(ends: tuple[float, ...], y: torch.Tensor, unit: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(units,) bool each: at one of the ends in all of (B, ...); at the lower one."""
    rows = y.movedim(unit, -1).flatten(0, -2)  # (B * positions, units)
    at = torch.stack([rows == end for end in ends])
    return at.any(0).all(0), at[0].all(0)


def called(call: FlatCall) -> tuple[Any, ...]:
    """What two calls have in common that are one in several passes."""
    return call.module, call.operation, call.number, call.flat.shape
