"""Configurations of a sweep's jobs, composed once for all that differ in plain values only.

Hydra composes a job in a tenth of a second and more, and twice. Values are put into a composed configuration in its
last step, which is all that is done here again.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf._utils import OmegaConfDumper, get_omega_conf_dumper
from omegaconf.errors import OmegaConfBaseException


class Composer:
    """A Hydra configuration loader whose sweeps are composed quickly; everything else is the loader's own."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.parser = OverridesParser.create(config_loader=loader)
        self.composed: dict[tuple[str, ...], DictConfig] = {}
        self.groups = set(loader.list_groups(""))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: Sequence[str]) -> DictConfig:
        """The configuration of a job. The next call may change it, where it differs in values only."""
        parsed = self.parser.parse_overrides(list(sweep_overrides))
        plain = [self.is_value(o) for o in parsed]
        key = tuple(o.key_or_group if p else str(o.input_line) for o, p in zip(parsed, plain, strict=True))
        if key not in self.composed or not any(plain):
            self.composed[key] = self.loader.load_sweep_config(master_config, list(sweep_overrides))
            return self.composed[key]
        cfg = self.composed[key]
        try:
            for override in (o for o, p in zip(parsed, plain, strict=True) if p):
                OmegaConf.update(cfg, override.key_or_group, override.value(), merge=True)
        except OmegaConfBaseException:  # Hydra's own words for it
            del self.composed[key]
            return self.loader.load_sweep_config(master_config, list(sweep_overrides))
        job = cfg.hydra.job
        exclude = set(job.config.override_dirname.exclude_keys)
        parts = job.config.override_dirname
        named = sorted(str(o.input_line) for o in parsed if o.key_or_group not in exclude)
        named = parts.item_sep.join(named).replace("=", parts.kv_sep)
        for node in (cfg.hydra.overrides, job):
            OmegaConf.set_readonly(node, False)
        cfg.hydra.overrides.task = list(sweep_overrides)
        job.override_dirname = named
        return cfg

    def is_value(self, override: Override) -> bool:
        """Whether an override sets a field that is there, and chooses no option."""
        name = override.key_or_group
        sets = not (override.is_add() or override.is_force_add() or override.is_delete() or override.package)
        return sets and not name.startswith("hydra") and name not in self.groups


class Dumper(OmegaConfDumper if not yaml.__with_libyaml__ else yaml.CDumper):  # type: ignore[misc]
    """OmegaConf's, in C where libyaml is there."""


Dumper.add_representer(str, get_omega_conf_dumper().str_representer)


def text(node: Any) -> str:
    """As OmegaConf.to_yaml writes it."""
    container = OmegaConf.to_container(node, resolve=False, enum_to_str=True)
    return yaml.dump(container, default_flow_style=False, allow_unicode=True, sort_keys=False, Dumper=Dumper)


def task_of(cfg: DictConfig) -> DictConfig:
    """A job's configuration without Hydra's part."""
    task = copy.copy(cfg)
    with read_write(task), open_dict(task):
        del task["hydra"]
    return task


def settle(cfg: DictConfig, number: int) -> Path:
    """Number a job, as Hydra's launchers do; returns its folder."""
    job, runtime = cfg.hydra.job, cfg.hydra.runtime
    with read_write(job), open_dict(job):
        job.id = job.num = number
    HydraConfig.instance().set_config(cfg)
    folder = os.path.join(str(cfg.hydra.sweep.dir), str(cfg.hydra.sweep.subdir))
    with read_write(runtime), open_dict(runtime):
        runtime.output_dir = os.path.abspath(folder)
    return Path(folder)


def write_hydra(cfg: DictConfig, task: DictConfig, folder: Path) -> None:
    """The files that Hydra leaves in a job's folder."""
    place = folder / str(cfg.hydra.output_subdir)
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.yaml").write_text(text(task))
    (place / "hydra.yaml").write_text(text(OmegaConf.masked_copy(cfg, ["hydra"])))
    (place / "overrides.yaml").write_text(text(cfg.hydra.overrides.task))
