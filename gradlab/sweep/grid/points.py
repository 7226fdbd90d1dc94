"""Grids: `logspace(1e-4,1,16)` beside Hydra's own `range` and `choice`, and the jobs that a grid makes."""

import math
from collections.abc import Sequence
from typing import Any, Union  # (annotations are read by Hydra's parser: they must be types and not text)

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser import overrides_parser
from hydra.core.override_parser.types import ChoiceSweep
from omegaconf import DictConfig, OmegaConf

from gradlab.base.option import Invalid, require

_shipped = overrides_parser.create_functions
DIGITS = 4
"""Significant digits of a point, as far as they tell all points apart."""


def points(start: float, stop: float, num: int) -> list[float]:
    """start * (stop / start)^(i / (num - 1)), i = 0 ... num - 1."""
    if not (start > 0 and stop > 0 and math.isfinite(start) and math.isfinite(stop)):
        raise ValueError(f"logspace({start},{stop},{num}): both ends must be > 0 and finite")
    if num < 1:
        raise ValueError(f"logspace({start},{stop},{num}): there must be at least one point")
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


def combinations(params: Any, given: Sequence[str], loader: Any) -> list[list[str]]:
    """The overrides of each job of a grid, in order. params: fields and values of the sweeper's own.

    Raises `Invalid` for a field that is given no value: there would be no job.
    """
    parser = overrides_parser.OverridesParser.create(config_loader=loader)
    parsed = parser.parse_overrides([*(f"{key}={value}" for key, value in (params or {}).items()), *given])
    for override in parsed:
        if override.is_sweep_override() and next(override.sweep_string_iterator(), None) is None:
            text = str(override.input_line).partition("=")[2]
            raise Invalid(override.get_key_element(), text, "must hold a value: there would be no job")
    (jobs,) = BasicSweeper.split_arguments(parsed, None)
    return jobs


def planned(config: DictConfig) -> list[list[str]] | None:
    """The overrides of each job of a grid, in order; None where the sweeper decides as it goes."""
    sweeper = config.hydra.sweeper
    if not sweeper._target_.endswith(".BasicSweeper"):
        return None
    given: Any = OmegaConf.to_container(config.hydra.overrides.task, resolve=False)
    jobs = combinations(sweeper.params, given, GlobalHydra.instance().config_loader())
    return [[o for o in job if not o.startswith("hydra.")] for job in jobs]
