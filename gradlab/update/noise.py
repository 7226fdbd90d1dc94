"""Gaussian gradient noise, annealed, added before clipping (Neelakantan et al. 2015).

This is not differential privacy, which needs the gradient of every sample clipped before the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import torch

from gradlab.base.option import option, require


@dataclass
class Noise:
    """Base of the options: the standard deviation at an update."""

    @property
    def active(self) -> bool:
        return False

    def std(self, update: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def norm(self, update: int, elements: int) -> float:
        """The norm that the noise of so many elements is expected to have."""
        return float(self.std(torch.tensor(float(update)))) * elements**0.5 if self.active else 0.0

    def add_(
        self,
        tensors: Sequence[torch.Tensor],
        update: torch.Tensor,
        seed: int,
        dtensors: Sequence[Any] | None = None,
        shard: Callable[[torch.Tensor, Any], torch.Tensor] = lambda draw, like: draw,
    ) -> None:
        """Add noise in place. The seed alone decides the draw, so that all ranks add the same noise.

        dtensors: where tensors are shards, what they are shards of; `shard` takes one from the noise of the whole.
        """
        if not tensors:
            return
        generator = torch.Generator(tensors[0].device).manual_seed(seed)
        std = self.std(update).float()
        for tensor, like in zip(tensors, dtensors or tensors, strict=True):
            draw = torch.randn(like.shape, generator=generator, device=tensor.device, dtype=tensor.dtype)
            tensor.addcmul_(shard(draw, like), std.to(tensor.dtype))


@option("noise", "none")
@dataclass
class NoNoise(Noise):
    """No noise."""


@option("noise", "gaussian")
@dataclass
class GaussianNoise(Noise):
    """Normal noise of variance eta / (1 + update)^gamma."""

    eta: float = 0.01
    """Variance at the first update; the paper tries 0.01, 0.3 and 1."""
    gamma: float = 0.55
    """Rate of annealing."""

    def __post_init__(self) -> None:
        require(0 <= self.eta < inf, "eta", self.eta, ">= 0 and finite")
        require(0 <= self.gamma < inf, "gamma", self.gamma, ">= 0 and finite")

    @property
    def active(self) -> bool:
        return self.eta > 0

    def std(self, update: torch.Tensor) -> torch.Tensor:
        return (self.eta / (1.0 + update) ** self.gamma) ** 0.5
