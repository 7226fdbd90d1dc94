"""Learning-rate schedules: pure functions of the number of applied updates, a tensor on the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Optional

import torch

from gradlab.base.importing import calling, load_object
from gradlab.base.option import at_least, option, require


@dataclass
class Schedule:
    """Base of the schedules: the factor on the learning rate for the update that follows `update` applied ones."""

    def factor(self, update: torch.Tensor) -> torch.Tensor:
        """update: (...) integers -> (...) float64 factors."""
        raise NotImplementedError

    watched: ClassVar[bool] = False
    """Whether it follows the evaluations."""

    def check(self, metrics: Collection[str]) -> None:
        """Raise `Invalid` where it follows a metric that is not among those of the evaluation."""

    def observe(self, measured: Mapping[str, float]) -> None:
        """An evaluation has ended."""

    def state_dict(self) -> dict[str, float]:
        """What evaluations have made of it."""
        return {}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Continue with that."""

    def resolve(self, total: int) -> Schedule:
        """Fill in what depends on the length of the run, `total` updates."""
        return self


def positive(updates: float | torch.Tensor) -> float | torch.Tensor:
    """At least 1."""
    return updates.clamp(min=1) if isinstance(updates, torch.Tensor) else max(updates, 1)


def half_cosine(done: torch.Tensor) -> torch.Tensor:
    """From 1 at 0 down to 0 at 1."""
    return 0.5 * (1 + torch.cos(math.pi * done))


def ramp(update: torch.Tensor, updates: float | torch.Tensor) -> torch.Tensor:
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
        at_least(self, warmup=0)

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
        at_least(self, warmup=0)
        require(self.updates is None or self.updates >= 1, "updates", self.updates, "null or >= 1")
        require(0 <= self.min_factor <= 1, "min_factor", self.min_factor, "in [0, 1]")

    def resolve(self, total: int) -> Schedule:
        return self if self.updates else replace(self, updates=max(total, 1))

    def length(self) -> int:
        if self.updates is None:
            raise ValueError("the schedule needs its length: resolve(total) first")
        return self.updates

    def factor(self, update: torch.Tensor) -> torch.Tensor:
        done = ((update.double() + 1 - self.warmup) / positive(self.length() - self.warmup)).clamp(0.0, 1.0)
        return ramp(update, self.warmup) * (self.min_factor + (1 - self.min_factor) * half_cosine(done))


@option("schedule", "step")
@dataclass
class StepDecay(Schedule):
    """Multiply the rate by gamma after every `every` updates."""

    every: int = 1000
    """Updates between two steps down."""
    gamma: float = 0.1
    """Factor of one step."""

    def __post_init__(self) -> None:
        at_least(self, every=1)
        require(0 < self.gamma <= 1, "gamma", self.gamma, "in (0, 1]")

    def factor(self, update: torch.Tensor) -> torch.Tensor:
        return self.gamma ** (update // self.every).double()


@option("schedule", "wsd")
@dataclass
class WarmupStableDecay(WarmupCosine):
    """Linear warm-up, the full rate, and a linear decay to min_factor over the last updates (Hu et al. 2024, WSD)."""

    min_factor: float = 0.0
    decay: float = 0.2
    """Part of the run that is the decay."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.decay <= 1, "decay", self.decay, "in [0, 1]")

    def factor(self, update: torch.Tensor) -> torch.Tensor:
        total = update.double() * 0 + self.length()  # whole numbers of lanes times a fraction would be fp32
        left = ((total - update.double()) / positive(total * self.decay)).clamp(0.0, 1.0)
        return ramp(update, self.warmup) * (self.min_factor + (1 - self.min_factor) * left)


@option("schedule", "inverse_sqrt")
@dataclass
class InverseSqrt(Warmup):
    """Linear warm-up, then 1 / sqrt(update) (Vaswani et al. 2017); the whole rate at the end of the warm-up."""

    def factor(self, update: torch.Tensor) -> torch.Tensor:
        warmup = positive(self.warmup)
        return ramp(update, warmup) * ((update.double() + 1) / warmup).clamp(min=1.0).rsqrt()


@option("schedule", "restarts")
@dataclass
class Restarts(Schedule):
    """Half cosines down to min_factor, each `growth` times as long as the last (SGDR, Loshchilov and Hutter 2017)."""

    period: int = 1000
    """Updates in the first cycle."""
    growth: int = 1
    """Each cycle is this many times as long as the one before."""
    min_factor: float = 0.0
    """Lowest rate as a fraction of the full one."""

    def __post_init__(self) -> None:
        at_least(self, period=1, growth=1)
        require(0 <= self.min_factor <= 1, "min_factor", self.min_factor, "in [0, 1]")

    def factor(self, update: torch.Tensor) -> torch.Tensor:
        periods = update.double() / self.period
        done = periods % 1
        if self.growth > 1:  # before cycle n lie (growth^n - 1) / (growth - 1) periods; 1e-9 more, since logs round
            cycle = (torch.log1p(periods * (self.growth - 1)) / math.log(self.growth) + 1e-9).floor()
            length = float(self.growth) ** cycle
            done = (periods - (length - 1) / (self.growth - 1)) / length
        return self.min_factor + (1 - self.min_factor) * half_cosine(done)


@option("schedule", "one_cycle")
@dataclass
class OneCycle(Schedule):
    """A half cosine up from start_factor to the full rate, then one down to min_factor (Smith and Topin 2018)."""

    rise: float = 0.3
    """Part of the run until the full rate."""
    updates: Optional[int] = None
    """Updates of the cycle; null: the length of the run."""
    start_factor: float = 0.04
    """First rate as a fraction of the full one."""
    min_factor: float = 4e-6
    """Last rate as a fraction of the full one."""

    def __post_init__(self) -> None:
        require(0 < self.rise < 1, "rise", self.rise, "in (0, 1)")
        require(self.updates is None or self.updates >= 2, "updates", self.updates, "null or >= 2")
        require(0 <= self.start_factor <= 1, "start_factor", self.start_factor, "in [0, 1]")
        require(0 <= self.min_factor <= 1, "min_factor", self.min_factor, "in [0, 1]")

    def resolve(self, total: int) -> Schedule:
        return self if self.updates else replace(self, updates=max(total, 2))

    def factor(self, update: torch.Tensor) -> torch.Tensor:
        if self.updates is None:
            raise ValueError("one_cycle needs its length: resolve(total) first")
        top = ((update.double() * 0 + self.updates) * self.rise - 1).clamp(min=1e-9)  # as in PyTorch
        up = self.start_factor + (1 - self.start_factor) * half_cosine(1 - (update.double() / top).clamp(max=1))
        down = half_cosine(((update.double() - top) / (self.updates - 1 - top)).clamp(0.0, 1.0))
        return torch.where(update <= top, up, self.min_factor + (1 - self.min_factor) * down)


@option("schedule", "custom")
@dataclass
class CustomSchedule(Schedule):
    """A function of (update, total), two whole numbers: the factor on the rate after `update` applied updates."""

    target: str = ""
    """The function, as "package.module:function"; the working directory is searched too."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of each call."""

    def __post_init__(self) -> None:
        require(":" in self.target, "target", self.target, 'of the form "package.module:function"')

    def resolve(self, total: int) -> Schedule:
        self.function: Callable[..., Any] = load_object("target", self.target)
        self.total = total
        self.factor(torch.zeros((), dtype=torch.int64))
        return self

    def factor(self, update: torch.Tensor) -> torch.Tensor:
        """On CUDA it waits for the device."""
        with calling("target", self.target):
            made = [float(self.function(i, self.total, **self.kwargs)) for i in update.flatten().tolist()]
        for value in made:
            require(0 <= value < math.inf, "target", f"{self.target} -> {value}", ">= 0 and finite")
        return torch.tensor(made, dtype=torch.float64, device=update.device).reshape(update.shape)
