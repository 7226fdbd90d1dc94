"""What a model keeps beside the state_dict that it begins with: other buffers, and plain attributes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import torch

from gradlab.base.visible import listed


class Unsaved:
    """Finds out what a model holds beside its state_dict that has changed since the run began."""

    def __init__(self, module: torch.nn.Module, late: Collection[str] = (), shared: bool = True) -> None:
        """late: persistent buffers that the model's class does not register.

        shared: whether all ranks have the same buffers, also those that are registered in training.
        """
        self.module, self.shared = module, shared
        self.began_without = next(module.buffers(), None) is None
        self.buffers = {name: Mark(buffer) for name, buffer in buffers_of(module).items()}
        own = module.named_buffers(remove_duplicate=False)
        self.shapes = {name: buffer.shape for name, buffer in own if name not in late}
        self.attributes = {name: Mark(value) for name, value in attributes_of(module).items()}
        self.told: set[str] = set()

    def state(self) -> dict[str, torch.Tensor]:
        """Buffers that have changed, for a checkpoint: those that are constant may be large."""
        now = buffers_of(self.module)
        return {name: buffer for name, buffer in now.items() if is_new(buffer, self.buffers.get(name))}

    def load(self, state: dict[str, torch.Tensor]) -> None:
        for name, value in state.items():
            register(self.module, name, value, persistent=False)

    def registered(self) -> list[str]:
        """Persistent buffers that are new, or have another shape."""
        others = buffers_of(self.module)
        now = self.module.named_buffers(remove_duplicate=False)
        return [name for name, buffer in now if name not in others and buffer.shape != self.shapes.get(name)]

    def notes(self) -> Iterator[str]:
        """What no checkpoint holds, once each: attributes that have changed, and buffers of other ranks."""
        now = attributes_of(self.module)
        unsaved = [name for name, value in now.items() if is_new(value, self.attributes.get(name))]
        apart = not self.shared and self.began_without  # DDP asks once whether there are buffers, and then shares all
        late = [name for name, _ in self.module.named_buffers() if apart]
        for what, names in (
            ("not in checkpoints, and begun anew when resumed, since they are no buffers", unsaved),
            (
                "registered in training, and not shared by DDP, since the model began without buffers: "
                "resumed on all ranks as rank 0 has them",
                late,
            ),
        ):
            if names and what not in self.told:
                self.told.add(what)
                yield f"{what}: {listed(names)}"


def register(module: torch.nn.Module, name: str, value: torch.Tensor, persistent: bool) -> None:
    place, _, last = name.rpartition(".")
    module.get_submodule(place).register_buffer(last, value.clone(), persistent=persistent)


def register_all(module: torch.nn.Module, names: Iterable[str], state: dict[str, torch.Tensor]) -> None:
    """Make room for the buffers that a model has registered in training. names: of those. state: of the model."""
    for name in names:
        if name in state:
            register(module, name, state[name].to(next(module.parameters()).device), persistent=True)


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
    """The buffers that are not persistent."""
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
