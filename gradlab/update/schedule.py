"""Learning-rate schedules: pure functions of the number of applied updates, a tensor on the device."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Optional

import torch

from gradlab.base.option import option, require


@dataclass
class Schedule:
    """Base of the schedules: the factor on the learning rate for the update that follows `update` applied ones."""

    def factor(self, update: torch.Tensor) -> torch.Tensor:
        """update: (...) integers -> (...) float64 factors."""
        raise NotImplementedError

    def resolve(self, total: int) -> Schedule:
        """Fill in what depends on the length of the run, `total` updates."""
        return self


def positive(updates: int | torch.Tensor) -> int | torch.Tensor:
    """At least 1."""
    return updates.clamp(min=1) if isinstance(updates, torch.Tensor) else max(updates, 1)


def ramp(update: torch.Tensor, updates: int | torch.Tensor) -> torch.Tensor:
    """Linear warm-up that reaches 1 at the last of `updates` updates; its first is not 0."""
    return ((update.double() + 1) / positive(updates)).clamp(max=1.0)


@option("schedule", "constant")
@dataclass
class Constant(Schedule):
    """The same rate throughout."""

    def factor(self, update: torch.Tensor) -> torch.Tensor:
        return torch.ones_like(update, dtype=torch.float64)


@option("schedule", "warmup")
@dataclass
class Warmup(Schedule):
    """Linear warm-up, then constant."""

    warmup: int = 100
    """Updates of warm-up."""

    def __post_init__(self) -> None:
        require(self.warmup >= 0, "warmup", self.warmup, ">= 0")

    def factor(self, update: torch.Tensor) -> torch.Tensor:
        return ramp(update, self.warmup)


@option("schedule", "warmup_cosine")
@dataclass
class WarmupCosine(Schedule):
    """Linear warm-up, then a half cosine down to min_factor (Loshchilov and Hutter 2017)."""

    warmup: int = 100
    """Updates of warm-up."""
    updates: Optional[int] = None
    """Updates after which the rate has reached its minimum; null: the length of the run."""
    min_factor: float = 0.1
    """Final rate as a fraction of the full one."""

    def __post_init__(self) -> None:
        require(self.warmup >= 0, "warmup", self.warmup, ">= 0")
        require(self.updates is None or self.updates >= 1, "updates", self.updates, "null or >= 1")
        require(0 <= self.min_factor <= 1, "min_factor", self.min_factor, "in [0, 1]")

    def resolve(self, total: int) -> Schedule:
        return self if self.updates else replace(self, updates=max(total, 1))

    def factor(self, update: torch.Tensor) -> torch.Tensor:
        if self.updates is None:
            raise ValueError("warmup_cosine needs its length: resolve(total) first")
        done = ((update.double() + 1 - self.warmup) / positive(self.updates - self.warmup)).clamp(0.0, 1.0)
        cosine = self.min_factor + (1 - self.min_factor) * 0.5 * (1 + torch.cos(math.pi * done))
        return ramp(update, self.warmup) * cosine


@option("schedule", "step")
@dataclass
class StepDecay(Schedule):
    """Multiply the rate by gamma after every `every` updates."""

    every: int = 1000
    """Updates between two steps down."""
    gamma: float = 0.1
    """Factor of one step."""

    def __post_init__(self) -> None:
        require(self.every >= 1, "every", self.every, ">= 1")
        require(0 < self.gamma <= 1, "gamma", self.gamma, "in (0, 1]")

    def factor(self, update: torch.Tensor) -> torch.Tensor:
        return self.gamma ** (update // self.every).double()
