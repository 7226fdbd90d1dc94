"""Where activations are flat, in some forward passes of the loop: there is none to run again at its end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

from gradlab.diagnosis.inspection import Inspection, outputs
from gradlab.measure.flat_units import FlatUnits
from gradlab.watch.followed_update import has_compiled, is_transformed

FIRST = 40
"""Forward passes with gradients before the first that is looked at; then twice as many, so that their time is none."""
ENOUGH = 256
"""Samples of a window: a unit that is zero for fewer may stand for something rare."""
PASSES = 16
"""Passes of a window at most."""


class LoopUnits(FlatUnits):
    """Those of a loop's own forward pass, which an exception in here must not end."""

    failed = False

    def look(self, name: str, args: Sequence[Any], out: Any) -> None:
        self.tried(super().look, name, args, out)

    def leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self.tried(super().leave, module, inputs, output)

    def tried(self, call: Callable[..., None], *args: Any) -> None:
        """Tensors may be sparse, nested or of another kind, whose elements cannot be read."""
        if self.failed:
            return
        try:
            call(*args)
        except Exception:
            self.failed = True


class ActivationWindows:
    """Looks at a model's activations in windows of its forward passes; the latest whole one counts."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.passes, self.next, self.samples = 0, FIRST, 0
        self.units: LoopUnits | None = None
        self.watching: AbstractContextManager[None] | None = None
        self.whole: tuple[FlatUnits, int] | None = None

    @property
    def possible(self) -> bool:
        """Nothing is compiled: each operation is seen."""
        return not any(map(is_compiled, self.model.modules()))

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A forward pass begins."""
        if self.watching or not (torch.is_grad_enabled() and module.training) or is_transformed():
            return
        self.passes += 1
        if self.passes < self.next or has_compiled():
            return
        if self.units is None:
            self.units, self.samples = LoopUnits(module), 0
        given = [x for x in _pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor) and x.ndim]
        self.samples += len(given[0]) if given else 0
        self.watching = self.units.watching()
        self.watching.__enter__()

    def after(self, module: nn.Module, args: Any, output: Any) -> None:
        """It ends, in whichever way: without an output where it has failed."""
        if self.units is None or not self.close():
            return
        if self.units.failed:
            self.units, self.whole, self.next = None, None, sys.maxsize
        elif output is None:
            self.units = None
        elif self.samples >= ENOUGH:
            self.whole = self.units, self.samples
        if self.units is not None and (self.samples >= ENOUGH or self.passes >= self.next + PASSES):
            self.units, self.next = None, 2 * self.next

    def close(self) -> bool:
        """Look no more, also where an interruption has ended the pass. Whether one was looked at."""
        watching, self.watching = self.watching, None
        if watching is not None:
            watching.__exit__(None, None, None)
        return watching is not None

    def inspection(self) -> Inspection | None:
        if self.whole is None or not self.whole[0].calls:
            return None
        units, samples = self.whole
        normalised, residual = units.has("normalised"), units.has("residual")
        return Inspection(outputs(units.calls, samples), samples, normalised=normalised, residual=residual)


def is_compiled(module: nn.Module) -> bool:
    return type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
