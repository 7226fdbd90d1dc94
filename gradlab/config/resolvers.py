"""What can be written in an override beside Hydra's own: `logspace(1e-4,1,16)`, and the axis that fits the model."""

import math
from typing import Any, Union  # (annotations are read by Hydra's parser: they must be types and not text)

from hydra.core.override_parser import overrides_parser
from hydra.core.override_parser.types import ChoiceSweep
from omegaconf import DictConfig

from gradlab.base.option import require

_shipped = overrides_parser.create_functions
MOST = 100_000
"""Values of a field, and jobs of a sweep."""
DIGITS = 4
"""Significant digits of a point, as long as they keep all points distinct."""


def points(start: float, stop: float, num: int) -> list[float]:
    """start * (stop / start)^(i / (num - 1)), i = 0 ... num - 1."""
    if not (start > 0 and stop > 0 and math.isfinite(start) and math.isfinite(stop)):
        raise ValueError(f"logspace({start},{stop},{num}): both ends must be > 0 and finite")
    if num < 1:
        raise ValueError(f"logspace({start},{stop},{num}): there must be at least one point")
    if num > MOST:
        raise ValueError(f"logspace({start},{stop},{num}): there must be at most {MOST:,} points")
    exact = [start * (stop / start) ** (i / max(num - 1, 1)) for i in range(num)]
    rounded = [float(f"{x:.{DIGITS}g}") for x in exact]
    return rounded if len(set(rounded)) == num else exact


def logspace(start: Union[int, float], stop: Union[int, float], num: int) -> ChoiceSweep:
    """Both ends included, each point the same factor from the next."""
    return ChoiceSweep(list=list(points(start, stop, num)))


def functions() -> Any:
    """What can be called in an override."""
    made = _shipped()
    made.register("logspace", logspace)
    return made


def register() -> None:
    """Let `logspace` be called in overrides and in the parameters of a sweeper."""
    overrides_parser.create_functions = functions


def for_model(axes: dict[str, str], *, _root_: DictConfig) -> str:
    """The axis of a sweep that fits the model."""
    model = _root_.hydra.runtime.choices.model
    require(model in axes, "model", model, f"one of {', '.join(map(str, axes))} for this sweep")
    return axes[model]
