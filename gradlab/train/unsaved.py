"""What a model keeps beside its state_dict: buffers that are not persistent, and plain attributes."""

from __future__ import annotations

from typing import Any

import torch

FEW = 5
"""Names that a line lists."""


class Unsaved:
    """Knows what of it has changed since the run began."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self.buffers = {name: mark(buffer) for name, buffer in buffers_of(module).items()}
        self.attributes = attributes_of(module)
        self.told = False

    def state(self) -> dict[str, torch.Tensor]:
        """Buffers that have changed, for a checkpoint: those that are constant may be large."""
        now = buffers_of(self.module)
        return {name: buffer for name, buffer in now.items() if mark(buffer) != self.buffers.get(name)}

    def load(self, state: dict[str, torch.Tensor]) -> None:
        for name, value in state.items():
            place, _, last = name.rpartition(".")
            self.module.get_submodule(place).register_buffer(last, value.clone(), persistent=False)

    def note(self) -> str:
        """Which attributes have changed, once: no checkpoint holds them."""
        now = attributes_of(self.module)
        lost = [] if self.told else [name for name, value in now.items() if value != self.attributes.get(name)]
        self.told |= bool(lost)
        some = ", ".join([*lost[:FEW], *["..."] * (len(lost) > FEW)])
        return f"not in checkpoints, and begun anew when resumed, since they are no buffers: {some}" if lost else ""


def mark(tensor: torch.Tensor) -> tuple[int, int]:
    """Another one when the tensor is changed in place, or is another."""
    return id(tensor), 0 if tensor.is_inference() else tensor._version


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
            if type(value) in (int, float) and not own.startswith("_"):
                found[f"{name}.{own}".lstrip(".")] = value
            elif isinstance(value, torch.Tensor):
                found[f"{name}.{own}".lstrip(".")] = mark(value)
    return found
