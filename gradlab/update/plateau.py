"""The learning rate falls where the evaluation no longer improves."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar

import torch

from gradlab.base.option import Invalid, at_least, option, require
from gradlab.update.schedule import Schedule, ramp


@option("schedule", "plateau")
@dataclass
class Plateau(Schedule):
    """Multiply the rate by gamma after more than `patience` evaluations without improvement: ReduceLROnPlateau."""

    gamma: float = 0.1
    """Factor of one step."""
    patience: int = 10
    """Evaluations in a row without improvement that change nothing."""
    threshold: float = 1e-4
    """An improvement is one by more than this part of the best value."""
    cooldown: int = 0
    """Evaluations after a step that are not counted."""
    min_factor: float = 0.0
    """Lowest rate as a fraction of the full one."""
    metric: str = "eval/loss"
    """Of the evaluation; a minus in front where more is better, as of -eval/accuracy."""
    warmup: int = 0
    """Updates of linear warm-up."""

    watched: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(0 < self.gamma < 1, "gamma", self.gamma, "in (0, 1)")
        at_least(self, patience=0, cooldown=0, warmup=0)
        require(0 <= self.threshold < 1, "threshold", self.threshold, "in [0, 1)")
        require(0 <= self.min_factor <= 1, "min_factor", self.min_factor, "in [0, 1]")
        require(self.metric.strip("-") != "", "metric", self.metric, "a metric of the evaluation, such as eval/loss")
        self.state: dict[str, float] = {"factor": 1.0, "best": inf, "bad": 0, "cooling": 0}

    def resolve(self, total: int) -> Plateau:
        return replace(self)  # with a state of its own

    def check(self, metrics: Collection[str]) -> None:
        if self.metric.removeprefix("-") not in metrics:
            known = ", ".join(n for n in metrics if n.startswith("eval/"))
            raise Invalid("schedule.metric", self.metric, f"is not measured here; there are {known}")

    def observe(self, measured: Mapping[str, float]) -> None:
        """As PyTorch's, of the negative where more is better; a value that is not a number is no improvement."""
        self.check(measured)
        name = self.metric.removeprefix("-")
        value, s = measured[name] * (1 if name == self.metric else -1), self.state
        if value < s["best"] - self.threshold * abs(s["best"]) if s["best"] < inf else value < inf:
            s["best"], s["bad"] = value, 0
        else:
            s["bad"] += 1
        if s["cooling"] > 0:
            s["cooling"], s["bad"] = s["cooling"] - 1, 0
        if s["bad"] > self.patience:
            s["factor"], s["bad"], s["cooling"] = max(s["factor"] * self.gamma, self.min_factor), 0, self.cooldown

    def state_dict(self) -> dict[str, float]:
        return dict(self.state)

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        if state.keys() == self.state.keys():  # another schedule began with nothing
            self.state = dict(state)

    def factor(self, update: torch.Tensor) -> torch.Tensor:
        return ramp(update, self.warmup) * self.state["factor"]
