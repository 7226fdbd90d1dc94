"""What a model keeps beside its state_dict: buffers that are not persistent, and plain attributes."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

FEW = 5
"""Names that a line lists."""


class Unsaved:
    """Knows what of it has changed since the run began."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self.buffers = {name: Mark(buffer) for name, buffer in buffers_of(module).items()}
        self.attributes = {name: Mark(value) for name, value in attributes_of(module).items()}
        self.told = False

    def state(self) -> dict[str, torch.Tensor]:
        """Buffers that have changed, for a checkpoint: those that are constant may be large."""
        now = buffers_of(self.module)
        return {name: buffer for name, buffer in now.items() if is_new(buffer, self.buffers.get(name))}

    def load(self, state: dict[str, torch.Tensor]) -> None:
        for name, value in state.items():
            place, _, last = name.rpartition(".")
            self.module.get_submodule(place).register_buffer(last, value.clone(), persistent=False)

    def note(self) -> str:
        """Which attributes have changed, once: no checkpoint holds them."""
        now = attributes_of(self.module)
        lost = [] if self.told else [name for name, value in now.items() if is_new(value, self.attributes.get(name))]
        self.told |= bool(lost)
        some = ", ".join([*lost[:FEW], *["..."] * (len(lost) > FEW)])
        return f"not in checkpoints, and begun anew when resumed, since they are no buffers: {some}" if lost else ""


class Mark:
    """What a number or a tensor was; the address of a tensor that is gone may be another's by now."""

    def __init__(self, value: Any) -> None:
        self.value: Callable[[], Any] = weakref.ref(value) if isinstance(value, torch.Tensor) else lambda: value
        self.version = version(value) if isinstance(value, torch.Tensor) else 0


def is_new(value: Any, before: Mark | None) -> bool:
    """Whether a number is another one, or a tensor another one or changed in place."""
    if before is None:
        return True
    was = before.value()
    if isinstance(value, torch.Tensor):
        return value is not was or version(value) != before.version
    return isinstance(was, torch.Tensor) or value != was


def version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def buffers_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Those that are not persistent."""
    found = {}
    for name, part in module.named_modules():
        for own in part._non_persistent_buffers_set:
            if (buffer := part._buffers.get(own)) is not None:
                found[f"{name}.{own}".lstrip(".")] = buffer
    return found


def attributes_of(module: torch.nn.Module) -> dict[str, Any]:
    """Numbers and tensors that are neither parameters nor buffers."""
    found: dict[str, Any] = {}
    for name, part in module.named_modules():
        for own, value in vars(part).items():
            if isinstance(value, torch.Tensor) or (type(value) in (int, float) and not own.startswith("_")):
                found[f"{name}.{own}".lstrip(".")] = value
    return found
