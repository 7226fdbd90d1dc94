"""Memory of one update in bytes of its tensors: independent of the device and of what the process held before."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Kept:
    """Tensors that autograd saves for the backward pass; a storage that several share counts once.

    What activation checkpointing computes again in the backward pass is not counted: it lives for one segment only.
    """

    def __init__(self, excluded: Iterable[torch.Tensor] = ()) -> None:
        """excluded: tensors that exist anyway, such as parameters and inputs."""
        self.excluded = {storage.data_ptr() for t in excluded if (storage := storage_of(t)) is not None}
        self.holders: dict[int, int] = {}
        self.now = self.most = 0

    def pack(self, tensor: torch.Tensor) -> Any:
        storage = storage_of(tensor)
        tensor = tensor.detach()  # without a cycle from an output to the node that saves it
        if storage is None or (key := storage.data_ptr()) in self.excluded:
            return Held(tensor)
        if key not in self.holders:
            self.holders[key] = 0
            self.now += storage.nbytes()
            self.most = max(self.most, self.now)
        self.holders[key] += 1
        held = Held(tensor)
        weakref.finalize(held, self.release, key, storage.nbytes())
        return held

    def release(self, key: int, size: int) -> None:
        self.holders[key] -= 1
        if not self.holders[key]:
            del self.holders[key]
            self.now -= size

    @staticmethod
    def unpack(held: Held) -> torch.Tensor:
        return held.tensor


class Held:
    """A saved tensor, which lives as long as autograd refers to it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


class Alive(TorchDispatchMode):
    """Tensors that operations create, until the last reference to their storage is gone."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled under it. PyTorch would import its compiler to say so, and do so again at every op."""
        return False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.known: dict[int, int] = {}
        self.now = self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for storage in storages_of((args, kwargs)):
            self.note(storage, 0)  # it existed before
        out = func(*args, **(kwargs or {}))
        for storage in storages_of(out):
            self.note(storage, storage.nbytes())
        return out

    def note(self, storage: torch.UntypedStorage, size: int) -> None:
        key = id(storage)  # PyTorch keeps a storage's Python object for as long as the storage
        if key not in self.known:
            self.known[key] = size
            weakref.finalize(storage, self.release, key)
            self.now += size
            self.most = max(self.most, self.now)

    def release(self, key: int) -> None:
        self.now -= self.known.pop(key)


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """None for a tensor without a storage of its own, such as a sparse one."""
    return tensor.untyped_storage() if tensor.layout == torch.strided else None


def storages_of(values: Any) -> list[torch.UntypedStorage]:
    tensors = (value for value in tree_leaves(values) if isinstance(value, torch.Tensor))
    return [storage for t in tensors if (storage := storage_of(t)) is not None]


class Memory:
    """Both counts of one update's forward and backward passes."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.bytes: dict[str, float] = {}

    @contextmanager
    def counting(self, window: Iterable[Any]) -> Iterator[None]:
        """window: the micro-batches."""
        there = [*self.model.parameters(), *self.model.buffers(), *tree_leaves([batch[:2] for batch in window])]
        kept, alive = Kept([t for t in there if isinstance(t, torch.Tensor)]), Alive()
        with torch.autograd.graph.saved_tensors_hooks(kept.pack, kept.unpack), alive:
            yield
        self.bytes = {"memory/activation_bytes": kept.most, "memory/update_bytes": alive.most}
