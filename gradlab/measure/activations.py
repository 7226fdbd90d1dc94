"""Measuring modules while they run, by hooks: their order of execution and statistics of their outputs.

B batch, D units of a layer
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from gradlab.measure.units import Layout, dead_fraction, layout, places_units
from gradlab.update.gradients import largest

FIELDS = ("rms", "max", "saturated", "dead")
"""Of each module's output: root mean square, largest magnitude, fraction of elements at saturation, of dead units."""

FLAT = 0.05
"""An activation is saturated where its slope is below this fraction of its largest."""


def saturated(module: torch.nn.Module, y: torch.Tensor) -> torch.Tensor | None:
    """Where a bounded activation is saturated, by its slope, computed from its output; None for other modules."""
    if isinstance(module, torch.nn.Sigmoid):
        return flat("sigmoid", y)
    if isinstance(module, torch.nn.Tanh) or (isinstance(module, torch.nn.RNN) and module.nonlinearity == "tanh"):
        return flat("tanh", y)
    return None


def flat(operation: str, y: torch.Tensor) -> torch.Tensor:
    """Where a sigmoid or tanh is flat, from its output, as its slope is."""
    return y * (1 - y) < FLAT / 4 if operation == "sigmoid" else 1 - y.square() < FLAT


def tensor_of(output: Any) -> torch.Tensor | None:
    """The first floating-point tensor of a module's output."""
    if isinstance(output, torch.Tensor):
        return output if output.is_floating_point() else None
    values = output.values() if isinstance(output, dict) else output if isinstance(output, tuple | list) else ()
    return next((found for value in values if (found := tensor_of(value)) is not None), None)


def statistics(module: torch.nn.Module, y: torch.Tensor, before: Layout | None = None) -> torch.Tensor:
    """(4,) float64, FIELDS, of a module's output. What does not apply to its kind is NaN.

    before: layout of the last layer before this one.
    """
    y = y.detach().float()
    norm = torch.linalg.vector_norm(y)
    values = [norm / max(y.numel(), 1) ** 0.5, largest(y) if y.numel() else norm]
    nothing = torch.full_like(norm, torch.nan)
    at = saturated(module, y)
    values.append(nothing if at is None else at.float().mean())
    silent = y.dim() > 1 and not any(True for _ in module.parameters(recurse=False))
    return torch.stack([v.double() for v in [*values, dead_fraction(y, before) if silent and y.numel() else nothing]])


@dataclass
class Activations:
    """Statistics of every leaf module of a model, (M, 4), from the last forward pass inside `watching`."""

    model: torch.nn.Module
    names: list[str] = field(default_factory=list)
    """M leaf modules in the order in which they run."""
    latest: dict[str, torch.Tensor] = field(default_factory=dict)
    before: Layout | None = None
    """The layout of the last layer that ran."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Hook the modules during a forward pass."""
        self.before = None
        with ExitStack() as stack:
            for module in self.model.modules():
                if places_units(module):  # no leaf where its weight is parametrized
                    stack.callback(module.register_forward_hook(self.note).remove)
            for name in self.names:
                module = self.model.get_submodule(name)
                stack.callback(module.register_forward_hook(self.hook(name)).remove)
            yield

    def note(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        if (y := tensor_of(output)) is not None:
            self.before = layout(module, y)

    def hook(self, name: str) -> Any:
        def look(module: torch.nn.Module, inputs: Any, output: Any) -> None:
            if (y := tensor_of(output)) is not None:
                self.latest[name] = statistics(module, y, self.before)

        return look

    def table(self, device: torch.device | str) -> torch.Tensor:
        """(M, 4) float64, FIELDS, of the modules in `names`."""
        nothing = torch.full((len(FIELDS),), torch.nan, dtype=torch.float64, device=device)
        if not self.names:
            return nothing.new_zeros((0, len(FIELDS)))
        return torch.stack([self.latest.get(name, nothing) for name in self.names])


@contextmanager
def recording_order(model: torch.nn.Module) -> Iterator[list[str]]:
    """Names of modules in the order in which they are first called in a forward pass."""
    order: dict[str, None] = {}
    with ExitStack() as stack:
        for name, module in model.named_modules():
            hook = module.register_forward_pre_hook(lambda m, i, name=name: order.setdefault(name))
            stack.callback(hook.remove)
        called: list[str] = []
        yield called
        called += order


def leaves(model: torch.nn.Module, called: list[str]) -> list[str]:
    """The called modules without children, in the order of execution; Identity does nothing and is left out."""
    modules = dict(model.named_modules())
    return [n for n in called if not any(modules[n].children()) and not isinstance(modules[n], torch.nn.Identity)]


def by_execution(layers: list[str], called: list[str]) -> list[int]:
    """Indices of layers in the order in which they run.

    A layer that is not called itself (its parent uses its weights) runs when the nearest module above it is; one that
    has none but the model above it comes last.
    """
    place = {name: i for i, name in enumerate(called)}

    def when(layer: str) -> int:
        above = layer
        while above and above not in place:
            above = above.rpartition(".")[0]
        return place.get(above, len(place)) if above or not layer else len(place)

    return sorted(range(len(layers)), key=lambda i: when(layers[i]))
