"""The jobs that a grid makes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from typing import Any  # (annotations are read by Hydra's parser: they must be types and not text)

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser import overrides_parser
from hydra.core.override_parser.types import Override, RangeSweep
from omegaconf import DictConfig, OmegaConf

from gradlab.base.option import Invalid
from gradlab.config.resolvers import MOST


def combinations(params: Any, given: Sequence[str], loader: Any) -> list[list[str]]:
    """The overrides of each job of a grid, in order. params: fields and values of the sweeper's own.

    Raises `Invalid` for a field that is given no value: there would be no job.
    """
    parser = overrides_parser.OverridesParser.create(config_loader=loader)
    parsed = parser.parse_overrides([*(f"{key}={value}" for key, value in (params or {}).items()), *given])
    check_number(parsed)
    (jobs,) = BasicSweeper.split_arguments(parsed, None)
    return jobs


def check_number(parsed: Sequence[Override]) -> None:
    """Raise `Invalid` where there would be no job, or more than a sweep can have; none is made."""
    swept = {o.get_key_element(): o for o in parsed if o.is_discrete_sweep()}  # the last of a field counts
    numbers = {name: number_of_values(o) for name, o in swept.items()}
    for name, number in numbers.items():
        text = str(swept[name].input_line).partition("=")[2]
        if number == 0:
            raise Invalid(name, text, "must hold a value: there would be no job")
        if number > MOST:
            raise Invalid(name, text, f"must hold at most {MOST:,} values")
    if (jobs := math.prod(numbers.values())) > MOST:
        last = next(reversed(numbers))
        text = str(swept[last].input_line).partition("=")[2]
        raise Invalid(last, text, f"there would be {jobs:,} jobs with {', '.join(numbers)}, and {MOST:,} is the most")


def number_of_values(override: Override) -> int:
    """How many values are swept; counted no further than is needed to refuse them."""
    value = override.value()
    values = value.range() if isinstance(value, RangeSweep) else override.sweep_string_iterator()
    return sum(1 for _ in islice(values, MOST + 1))


def planned(config: DictConfig) -> list[list[str]] | None:
    """The overrides of each job of a grid, in order; None where the sweeper decides as it goes."""
    sweeper = config.hydra.sweeper
    if not sweeper._target_.endswith(".GridSweeper"):
        return None
    given: Any = OmegaConf.to_container(config.hydra.overrides.task, resolve=False)
    jobs = combinations(sweeper.params, given, GlobalHydra.instance().config_loader())
    return [[o for o in job if not o.startswith("hydra.")] for job in jobs]
