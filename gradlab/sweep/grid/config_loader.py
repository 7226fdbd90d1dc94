"""Configurations of a sweep's jobs, composed once for all that differ in plain values only.

Hydra composes a job in a tenth of a second and more, and twice. Values are put into a composed configuration in its
last step, which is all that is done here again.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from gradlab.config.compose import is_value
from gradlab.sweep.grid.job_config import JobConfig

NUMBER = re.compile(r"([A-Za-z_][\w.]*)=([+-]?(?:0|[1-9]\d*)(\.\d+(?:[eE][+-]?\d+)?|[eE][+-]?\d+)?)")
"""`field=number`, as Hydra reads it."""


class SweepConfigLoader:
    """A Hydra configuration loader whose sweeps are composed quickly; everything else is delegated to it."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.parser = OverridesParser.create(config_loader=loader)
        self.known: dict[tuple[str, ...], JobConfig] = {}
        self.groups = set(loader.list_groups(""))
        self.parse = functools.cache(self.parser.parse_override)
        self.numbers: dict[tuple[str, bool], Override] = {}
        """An override of each field that sets a whole number, or another."""
        self.checked: dict[tuple[Hashable, ...], JobConfig] = {}
        """Jobs that were composed without an error, whatever numbers they set."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: Sequence[str]) -> DictConfig:
        """The configuration of this job, or of one that differs in numbers alone: composing it checks the job."""
        key = tuple(self.number(override) or override for override in sweep_overrides)
        if key not in self.checked:
            self.checked[key] = self.compose(master_config, sweep_overrides)
        return self.checked[key].whole

    def number(self, override: str) -> tuple[str, bool] | None:
        """The field that is set to a number, and whether to a whole one; None where something else is set."""
        found = NUMBER.fullmatch(override)
        return (found[1], found[3] is None) if found and found[1] not in self.groups else None

    def parsed(self, override: str) -> Override:
        """The override as Hydra parses it, which takes a millisecond: once for all numbers of a field."""
        if (number := self.number(override)) is None:
            return self.parse(override)
        if number not in self.numbers:
            self.numbers[number] = self.parser.parse_override(override)
        text = override.partition("=")[2]
        value = int(text) if number[1] else float(text)
        return replace(self.numbers[number], _value=value, input_line=override)

    def kind(self, parsed: Sequence[Override]) -> tuple[tuple[str, ...], list[Override]]:
        """What the jobs that are composed once have in common, and the values in which they differ."""
        values = [o for o in parsed if is_value(o, self.groups)]
        return tuple(str(o.key_or_group) if o in values else str(o.input_line) for o in parsed), values

    def compose(self, master: DictConfig, overrides: Sequence[str]) -> JobConfig:
        parsed = [self.parsed(override) for override in overrides]
        key, values = self.kind(parsed)
        if key not in self.known:
            self.known[key] = JobConfig(self.loader.load_sweep_config(master, list(overrides)), values)
            return self.known[key]
        composed = self.known[key]
        parts = composed.dirname
        named = sorted(str(o.input_line) for o in parsed if o.key_or_group not in parts["exclude_keys"])
        try:
            composed.set_values(values, overrides, parts["item_sep"].join(named).replace("=", parts["kv_sep"]))
        except OmegaConfBaseException:  # Hydra raises its own error
            del self.known[key]
            return JobConfig(self.loader.load_sweep_config(master, list(overrides)), values)
        return composed
