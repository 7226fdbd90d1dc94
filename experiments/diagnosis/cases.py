"""Models and data with known faults, for `model.target` and `data.target`."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Detached(nn.Module):
    """Its lower half gets no gradient: somebody left a detach() in."""

    def __init__(self, features: int = 64, width: int = 48, outputs: int = 10) -> None:
        super().__init__()
        self.lower = nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.upper = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return self.upper(self.lower(x.flatten(1)).detach())


class Dying(nn.Module):
    """Its biases begin far below zero."""

    def __init__(self, features: int = 64, width: int = 48, outputs: int = 10) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, outputs)
        nn.init.constant_(self.layers[2].bias, -30.0)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x.flatten(1)))


class Saturated(nn.Module):
    """A tanh network whose inputs nobody normalised."""

    def __init__(self, features: int = 64, width: int = 48, outputs: int = 10) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, width), nn.Tanh(), nn.Linear(width, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(1e4 * (x.flatten(1) + 3.0))


def noise(samples: int = 1024) -> tuple[Tensor, Tensor]:
    """Classes that a small network can tell apart, of vectors in three clouds."""
    draw = torch.Generator().manual_seed(7)
    labels = torch.randint(3, (samples,), generator=draw)
    return torch.randn(samples, 12, generator=draw) + 2.0 * labels[:, None], labels
