"""The range of a tensor's numbers, and the fraction that is not finite."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class Range:
    """The finite numbers of a tensor: smallest, largest, largest magnitude; and the fraction that is not finite."""

    name: str
    shape: list[int]
    dtype: str
    min: float | None
    max: float | None
    absmax: float | None
    """All three are None where no number is finite, or the tensor is empty."""
    nonfinite: float

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape)) or "a number"
        if self.absmax is None:
            return f"{self.name} ({shape}, {self.dtype}): {'nothing finite' if self.nonfinite else 'empty'}"
        text = f"{self.name} ({shape}, {self.dtype}): {self.min:.4g} to {self.max:.4g}, at most {self.absmax:.4g}"
        return f"{text}, {self.nonfinite:.3g} of it not finite" if self.nonfinite else f"{text}, all finite"


def range_of(name: str, tensor: torch.Tensor) -> Range:
    """The range of a tensor of real or complex numbers; of complex ones of both parts."""
    values = dense(tensor)
    good = values[torch.isfinite(values)]
    low, high = (v.item() for v in good.aminmax()) if good.numel() else (None, None)
    absmax = max(abs(low), abs(high)) if low is not None and high is not None else None
    bad = 1 - good.numel() / values.numel() if values.numel() else 0.0
    return Range(name, list(tensor.shape), str(tensor.dtype).removeprefix("torch."), low, high, absmax, bad)


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The numbers of a tensor, whatever its layout, as real ones."""
    values = tensor.detach()
    if values.layout != torch.strided:
        values = values.coalesce().values() if values.layout == torch.sparse_coo else values.to_dense()
    return torch.view_as_real(values.resolve_conj()) if values.is_complex() else values


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of real or complex numbers in a module's inputs or outputs, however nested."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point() or value.is_complex():
            yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_of(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_of(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_of(getattr(value, field.name))


def largest(value: Any) -> float | None:
    """Largest magnitude; None of no tensor, NaN where there is one."""
    found = [dense(t).abs().max().item() for t in tensors_of(value) if t.numel()]
    return max(found, key=lambda v: (v != v, v), default=None)


def finite(value: Any) -> bool:
    return all(bool(torch.isfinite(dense(t)).all()) for t in tensors_of(value))


def mask(tensor: torch.Tensor) -> bool:
    """Whether its only non-finite number is minus infinity: a mask, which softmax turns into 0."""
    values = dense(tensor)
    return not bool((values.isnan() | (values == torch.inf)).any())
