"""Configurations of a sweep's jobs, composed once for all that differ in plain values only.

Hydra composes a job in a tenth of a second and more, and twice. Values are put into a composed configuration in its
last step, which is all that is done here again.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from gradlab.config.compose import is_value
from gradlab.sweep.grid.job_config import JobConfig


class SweepConfigLoader:
    """A Hydra configuration loader whose sweeps are composed quickly; everything else is delegated to it."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.parser = OverridesParser.create(config_loader=loader)
        self.known: dict[tuple[str, ...], JobConfig] = {}
        self.groups = set(loader.list_groups(""))
        self.parsed = functools.cache(self.parser.parse_override)
        self.good: set[tuple[tuple[str, ...], str]] = set()
        """Values that were put into a configuration without an error, with its key."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: Sequence[str]) -> DictConfig:
        """The configuration of a job like this one: used to check jobs: composing is the check."""
        key, values = self.kind([self.parsed(override) for override in sweep_overrides])
        if key in self.known and all((key, str(value.input_line)) in self.good for value in values):
            return self.known[key].whole
        return self.compose(master_config, sweep_overrides).whole

    def kind(self, parsed: Sequence[Override]) -> tuple[tuple[str, ...], list[Override]]:
        """What the jobs that are composed once have in common, and the values in which they differ."""
        values = [o for o in parsed if is_value(o, self.groups)]
        return tuple(str(o.key_or_group) if o in values else str(o.input_line) for o in parsed), values

    def compose(self, master: DictConfig, overrides: Sequence[str]) -> JobConfig:
        parsed = [self.parsed(override) for override in overrides]
        key, values = self.kind(parsed)
        if key not in self.known:
            self.known[key] = JobConfig(self.loader.load_sweep_config(master, list(overrides)), values)
            self.good |= {(key, str(value.input_line)) for value in values}
            return self.known[key]
        composed = self.known[key]
        parts = composed.hydra.hydra.job.config.override_dirname
        named = sorted(str(o.input_line) for o in parsed if o.key_or_group not in parts.exclude_keys)
        try:
            composed.set_values(values, overrides, parts.item_sep.join(named).replace("=", parts.kv_sep))
        except OmegaConfBaseException:  # Hydra raises its own error
            del self.known[key]
            return JobConfig(self.loader.load_sweep_config(master, list(overrides)), values)
        self.good |= {(key, str(value.input_line)) for value in values}
        return composed
