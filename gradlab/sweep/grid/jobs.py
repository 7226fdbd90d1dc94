"""The jobs that a grid makes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any  # (annotations are read by Hydra's parser: they must be types and not text)

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser import overrides_parser
from omegaconf import DictConfig, OmegaConf

from gradlab.base.option import Invalid


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
