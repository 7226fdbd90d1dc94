"""Configurations of a sweep's jobs, composed once for all that differ in plain values only.

Hydra composes a job in a tenth of a second and more, and twice. Values are put into a composed configuration in its
last step, which is all that is done here again.
"""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Collection, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf, ValueNode
from omegaconf._utils import OmegaConfDumper, get_omega_conf_dumper
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException

from gradlab.config import Config, to_config

Files = dict[str, list[str]]
"""Files by their names, in parts, most of which jobs share."""
HYDRA_DIFFERS = ("overrides", "job", "runtime")
"""Parts of Hydra's configuration in which jobs differ."""


class Composed:
    """What Hydra makes of a job's overrides. Jobs that differ in values only take turns in the same object."""

    def __init__(self, whole: DictConfig, values: Sequence[Override]) -> None:
        """values: the overrides that set a plain value; in another job the same fields, with other values."""
        names = [str(name) for name in whole if name != "hydra"]
        self.whole = whole
        self.task = OmegaConf.masked_copy(whole, names)
        """The job's own configuration."""
        self.hydra = OmegaConf.masked_copy(whole, ["hydra"])
        """Hydra's part of it."""
        for node in (self.hydra.hydra.overrides, self.hydra.hydra.job, self.hydra.hydra.runtime):
            OmegaConf.set_readonly(node, False)
            OmegaConf.set_struct(node, False)
        raw: Any = OmegaConf.to_container(self.task, resolve=False)
        self.differ = {name for name, value in raw.items() if "${" in repr(value)}
        """Fields in which jobs may differ: those that take something from others, and those that are set."""
        self.differ |= {str(override.key_or_group).split(".")[0] for override in values}
        self.typed: Config | None = None
        self.plain: dict[str, Any] = {}
        self.texts: dict[str, str] = {}
        """Fields as they stand in the jobs' files, of this configuration and of Hydra's."""

    def put(self, values: Sequence[Override], overrides: Sequence[str], name: str) -> None:
        """Change values. name: hydra.job.override_dirname."""
        for override in values:
            name_of = str(override.key_or_group)
            # the whole knows the schema of fields outside of groups, and is asked for nothing else
            for cfg in (self.task,) if "." in name_of else (self.whole, self.task):
                OmegaConf.update(cfg, name_of, override.value(), merge=True)
        self.hydra.hydra.overrides.task, self.hydra.hydra.job.override_dirname = list(overrides), name

    def settle(self, number: int) -> Path:
        """Number the job, as Hydra's launchers do, and make it the one that is asked for; returns its folder."""
        hydra = self.hydra.hydra
        hydra.job.id = hydra.job.num = number
        HydraConfig.instance().cfg = self.hydra  # type: ignore[assignment]
        try:
            folder = os.path.join(str(hydra.sweep.dir), str(hydra.sweep.subdir))
        except InterpolationResolutionError:  # a folder's name may hold the job's own values
            both = OmegaConf.merge(self.task, self.hydra)
            folder = os.path.join(str(both.hydra.sweep.dir), str(both.hydra.sweep.subdir))
        hydra.runtime.output_dir = os.path.abspath(folder)
        return Path(folder)

    def config(self) -> tuple[Config, dict[str, Any]]:
        """The job's configuration as objects and as plain values, made anew only where jobs may differ."""
        if self.typed is None:
            self.typed = to_config(self.task)
            self.plain = OmegaConf.to_container(self.task, resolve=True)  # type: ignore[assignment]
        else:
            self.typed = to_config(self.task, self.typed, self.differ)
            self.plain = self.plain | {name: plain(self.task[name]) for name in self.differ}
        return copy.copy(self.typed), self.plain

    def files(self, treated: DictConfig | None = None) -> Files:
        """What Hydra writes into a job's folder. treated: what runs, where it is not what was composed."""
        hydra = self.hydra.hydra
        place = str(hydra.output_subdir)
        return {
            f"{hydra.job.name}.log": [],
            f"{place}/config.yaml": [text(treated)] if treated is not None else self.parts(self.task, self.differ),
            f"{place}/hydra.yaml": ["hydra:\n", *self.parts(hydra, HYDRA_DIFFERS, "hydra")],
            f"{place}/overrides.yaml": [text(hydra.overrides.task)],
        }

    def parts(self, cfg: DictConfig, differ: Collection[str], under: str = "") -> list[str]:
        """The text of each field, which most jobs have in common. under: the field that holds them."""
        made = []
        for key in map(str, cfg):
            name = f"{under}.{key}"
            if key in differ or name not in self.texts:
                value = cfg._get_node(key)
                lines = text({under: {key: value}}).partition("\n")[2] if under else text({key: value})
                self.texts[name] = lines
            made.append(self.texts[name])
        return made


def write(folder: Path, files: Files) -> None:
    """Leave in a job's folder what Hydra would."""
    for name, parts in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(parts)) if parts else path.touch()


class Composer:
    """A Hydra configuration loader whose sweeps are composed quickly; everything else is the loader's own."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.parser = OverridesParser.create(config_loader=loader)
        self.known: dict[tuple[str, ...], Composed] = {}
        self.groups = set(loader.list_groups(""))
        self.parsed = functools.cache(self.parser.parse_override)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: Sequence[str]) -> DictConfig:
        """The configuration of the first job like this one: sweepers compose jobs to check them, as `compose` does."""
        key = self.shape(sweep_overrides)[2]
        return (self.known.get(key) or self.compose(master_config, sweep_overrides)).whole

    def shape(self, overrides: Sequence[str]) -> tuple[list[Override], list[Override], tuple[str, ...]]:
        """Overrides parsed, those of them that set plain values, and what jobs that differ in these only share."""
        parsed = [self.parsed(override) for override in overrides]
        plain = [self.is_value(o) for o in parsed]
        key = tuple(str(o.key_or_group if value else o.input_line) for o, value in zip(parsed, plain, strict=True))
        return parsed, [o for o, value in zip(parsed, plain, strict=True) if value], key

    def compose(self, master: DictConfig, overrides: Sequence[str]) -> Composed:
        parsed, values, key = self.shape(overrides)
        if key not in self.known:
            self.known[key] = Composed(self.loader.load_sweep_config(master, list(overrides)), values)
            return self.known[key]
        composed = self.known[key]
        parts = composed.hydra.hydra.job.config.override_dirname
        named = sorted(str(o.input_line) for o in parsed if o.key_or_group not in parts.exclude_keys)
        try:
            composed.put(values, overrides, parts.item_sep.join(named).replace("=", parts.kv_sep))
        except OmegaConfBaseException:  # Hydra has its own words for it
            del self.known[key]
            return Composed(self.loader.load_sweep_config(master, list(overrides)), values)
        return composed

    def is_value(self, override: Override) -> bool:
        """Whether an override sets a field that is there, to what replaces the last value: a mapping is merged."""
        name = override.key_or_group
        sets = not (override.is_add() or override.is_force_add() or override.is_delete() or override.package)
        plain = not isinstance(override.value(), dict)
        return sets and plain and not name.startswith("hydra") and name not in self.groups


def plain(node: Any) -> Any:
    """A field's value without OmegaConf."""
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node


def bare(node: Any) -> Any:
    """Without OmegaConf, as it is before interpolations are resolved."""
    if OmegaConf.is_config(node):
        return OmegaConf.to_container(node, resolve=False, enum_to_str=True)
    if isinstance(node, dict):
        return {key: bare(value) for key, value in node.items()}
    value = node._value() if isinstance(node, ValueNode) else node
    return value.name if isinstance(value, Enum) else value


class Dumper(OmegaConfDumper if not yaml.__with_libyaml__ else yaml.CDumper):  # type: ignore[misc]
    """OmegaConf's, in C where libyaml is there."""


Dumper.add_representer(str, get_omega_conf_dumper().str_representer)


def text(node: Any) -> str:
    """As OmegaConf.to_yaml writes it; nodes of a configuration may be within plain mappings."""
    return yaml.dump(bare(node), default_flow_style=False, allow_unicode=True, sort_keys=False, Dumper=Dumper)
