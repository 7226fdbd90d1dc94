"""A job's configuration, with Hydra's part of it, in which values can be changed."""

from __future__ import annotations

import copy
import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf, ValueNode
from omegaconf._utils import OmegaConfDumper, get_omega_conf_dumper
from omegaconf.errors import InterpolationResolutionError

from gradlab.config.schema import Config, to_config

HYDRA_DIFFERS = ("overrides", "job", "runtime")
"""Parts of Hydra's configuration in which jobs differ."""


class JobConfig:
    """What Hydra composes from a job's overrides. Jobs that differ in values only use the same object in turn."""

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
        self.follow = {name for name, value in raw.items() if "${" in repr(value)}
        """Fields that interpolate others."""
        self.differ = self.follow | {str(override.key_or_group).split(".")[0] for override in values}
        """Fields in which jobs may differ."""
        self.texts: dict[str, str] = {}
        """The text of fields in the jobs' files, of this configuration and of Hydra's."""
        self.stale = set[str]()
        """Fields that were set since the configuration was made."""
        self.values = [str(override.input_line) for override in values]
        names = sorted(str(override.key_or_group) + "." for override in values)
        self.apart = not any(other.startswith(one) for one, other in pairwise(names))
        """Whether no value is part of another: then one alone can be changed."""
        its: Any = OmegaConf.to_container(self.hydra, resolve=False)
        self.overrides: Sequence[str] = its["hydra"]["overrides"]["task"]
        self.name: str = its["hydra"]["job"]["override_dirname"]
        self.dirname: dict[str, Any] = its["hydra"]["job"]["config"]["override_dirname"]
        """How that name is made."""
        self.number, self.filled = 0, True
        self.reads_hydra = "${hydra" in repr(raw)
        self.sweep_dir = self.common_dir()
        self.typed: Config | None = None
        self.plain: dict[str, Any] = {}

    def common_dir(self) -> Path | None:
        """The sweep's folder, where each job's is named by its number alone; else None."""
        sweep: Any = OmegaConf.to_container(self.hydra.hydra.sweep, resolve=False)
        own = "hydra.job" in sweep["dir"] or "hydra.overrides" in sweep["dir"]
        if own or sweep["subdir"] != "${hydra.job.num}":
            return None
        with suppress(InterpolationResolutionError):
            return Path(str(self.hydra.hydra.sweep.dir))
        return None

    def set_values(self, values: Sequence[Override], overrides: Sequence[str], dirname: str) -> None:
        """Change values. dirname: hydra.job.override_dirname."""
        lines = [str(override.input_line) for override in values]
        for override, line, before in zip(values, lines, self.values):
            if line == before and self.apart:
                continue
            name = str(override.key_or_group)
            # the whole knows the schema of fields outside of groups, and is asked for nothing else
            for cfg in (self.task,) if "." in name else (self.whole, self.task):
                OmegaConf.update(cfg, name, override.value(), merge=True)
            self.stale.add(name.split(".")[0])
        self.values, self.overrides, self.name, self.filled = lines, overrides, dirname, False

    def activate(self, number: int) -> Path:
        """Number the job, as Hydra's launchers do, and make it the current one of HydraConfig; returns its folder."""
        self.number, self.filled = number, False
        HydraConfig.instance().cfg = self.hydra  # type: ignore[assignment]
        if self.sweep_dir is None or self.reads_hydra or any("${hydra" in line for line in self.values):
            return self.fill_hydra()
        return self.sweep_dir / str(number)

    def fill_hydra(self) -> Path:
        """Fill Hydra's part with what describes the job, which takes longer than the values; returns its folder."""
        hydra, self.filled = self.hydra.hydra, True
        hydra.overrides.task, hydra.job.override_dirname = list(self.overrides), self.name
        hydra.job.id = hydra.job.num = self.number
        try:
            folder = os.path.join(str(hydra.sweep.dir), str(hydra.sweep.subdir))
        except InterpolationResolutionError:  # a folder's name may hold the job's own values
            both = OmegaConf.merge(self.task, self.hydra)
            folder = os.path.join(str(both.hydra.sweep.dir), str(both.hydra.sweep.subdir))
        hydra.runtime.output_dir = os.path.abspath(folder)
        return Path(folder)

    def config(self) -> tuple[Config, dict[str, Any]]:
        """The job's configuration as objects and as plain values, built again only where it changed."""
        if self.typed is None:
            self.typed = to_config(self.task)
            self.plain = OmegaConf.to_container(self.task, resolve=True)  # type: ignore[assignment]
        else:
            changed = self.stale | self.follow
            self.typed = to_config(self.task, self.typed, changed)
            self.plain = self.plain | {name: plain_value(self.task[name]) for name in changed}
        self.stale.clear()
        return copy.copy(self.typed), self.plain

    def write(self, folder: Path, treated: DictConfig | None = None) -> None:
        """The files that Hydra leaves in a job's folder. treated: what runs, where it is not what was composed."""
        if not self.filled:
            self.fill_hydra()
        hydra = self.hydra.hydra
        place = folder / str(hydra.output_subdir)
        place.mkdir(parents=True, exist_ok=True)
        (folder / f"{hydra.job.name}.log").touch()
        (place / "config.yaml").write_text(
            self.lines(self.task, self.differ) if treated is None else text(treated), encoding="utf-8"
        )
        (place / "hydra.yaml").write_text("hydra:\n" + self.lines(hydra, HYDRA_DIFFERS, "hydra"), encoding="utf-8")
        (place / "overrides.yaml").write_text(text(hydra.overrides.task), encoding="utf-8")

    def lines(self, cfg: DictConfig, differ: Collection[str], under: str = "") -> str:
        """The text of all fields, most of which are the same in every job. under: the field that holds them."""
        made = []
        for key in map(str, cfg):
            name = f"{under}.{key}"
            if key in differ or name not in self.texts:
                value = bare(cfg._get_node(key))
                self.texts[name] = text({under: {key: value}}).partition("\n")[2] if under else text({key: value})
            made.append(self.texts[name])
        return "".join(made)


def plain_value(node: Any) -> Any:
    """A field's value without OmegaConf."""
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node


class Dumper(OmegaConfDumper if not yaml.__with_libyaml__ else yaml.CDumper):  # type: ignore[misc]
    """OmegaConf's, in C where libyaml is there."""


Dumper.add_representer(str, get_omega_conf_dumper().str_representer)


def bare(node: Any) -> Any:
    """Without OmegaConf, as it is before interpolations are resolved."""
    if OmegaConf.is_config(node):
        return OmegaConf.to_container(node, resolve=False, enum_to_str=True)
    value = node._value() if isinstance(node, ValueNode) else node
    return value.name if isinstance(value, Enum) else value


def text(node: Any) -> str:
    """A configuration as OmegaConf.to_yaml writes it."""
    return str(yaml.dump(bare(node), default_flow_style=False, allow_unicode=True, sort_keys=False, Dumper=Dumper))
