"""Many runs' options and tensors as one: what differs between lanes becomes a tensor with one value a lane."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch


def stack_options(options: Sequence[Any], device: torch.device) -> Any:
    """One option of the same class as all; numbers that differ are (L,) float64, or int64 where all are integers."""
    first, made = options[0], copy.copy(options[0])
    for field in fields(first):
        values = [getattr(option, field.name) for option in options]
        if any(value != values[0] for value in values[1:]):
            whole = all(isinstance(value, int) for value in values)
            dtype = torch.int64 if whole else torch.float64
            setattr(made, field.name, torch.tensor(values, dtype=dtype, device=device))
    return made


def select_lanes(option: Any, index: torch.Tensor) -> Any:
    """A stacked option for some of the lanes."""
    made = copy.copy(option)
    for field in fields(option):
        if isinstance(value := getattr(option, field.name), torch.Tensor):
            setattr(made, field.name, value[index])
    return made


class FlatTensors:
    """P tensors of each lane side by side in one matrix, (L, N); `views` are the (L, *shape) parts of it."""

    def __init__(self, lanes: int, shapes: Sequence[torch.Size], device: torch.device) -> None:
        self.shapes = list(shapes)
        self.matrix = torch.zeros(lanes, sum(shape.numel() for shape in shapes), device=device)

    @property
    def views(self) -> list[torch.Tensor]:
        return self.cut(self.matrix)

    def cut(self, matrix: torch.Tensor) -> list[torch.Tensor]:
        """The parts of an (L, N) matrix."""
        parts = matrix.split([shape.numel() for shape in self.shapes], 1)
        return [part.unflatten(1, shape) if shape else part[:, 0] for part, shape in zip(parts, self.shapes)]

    def fill(self, lane: int, tensors: Sequence[torch.Tensor]) -> None:
        """Write one lane's tensors."""
        self.matrix[lane] = torch.cat([tensor.flatten() for tensor in tensors])

    def keep(self, index: torch.Tensor) -> None:
        """Keep these lanes only."""
        self.matrix = self.matrix[index]
