"""Composing a configuration with Hydra: what `python -m gradlab` would run for these overrides."""

from __future__ import annotations

import copy
import functools
from collections.abc import Collection, Sequence
from datetime import datetime
from secrets import token_hex
from typing import TYPE_CHECKING

from gradlab.base.conf import conf_dir
from gradlab.base.option import OPTIONS, Invalid, within
from gradlab.config import schema
from gradlab.diagnosis.options import check_verdict

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from hydra.plugins.config_source import ConfigSource
    from omegaconf import DictConfig

VERSION_BASE = "1.3"
"""The version of Hydra whose behaviour is meant."""
SILENT = ["hydra.output_subdir=null", "hydra/job_logging=disabled", "hydra/hydra_logging=disabled"]
"""Overrides of the ranks that write no files and print nothing."""


@functools.cache
def run_stamp() -> str:
    """Name of this process's run folder: the same on every rank, another for every run."""
    from gradlab.base.distributed import world

    return str(world().broadcast(f"{datetime.now():%Y-%m-%d_%H-%M-%S}_{token_hex(2)}"))


def register() -> None:
    """Register the schema with Hydra and the resolvers with OmegaConf."""
    from hydra import version
    from omegaconf import OmegaConf

    from gradlab.config import resolvers

    version.setbase(VERSION_BASE)
    schema.register()
    # cached in the configuration, and with it for the jobs of a sweep that run in other processes
    OmegaConf.register_new_resolver("run_stamp", run_stamp, replace=True, use_cache=True)
    OmegaConf.register_new_resolver("for_model", resolvers.for_model, replace=True)
    resolvers.register()


def check(config: schema.Config) -> None:
    """Raise `Invalid` for what a configuration cannot check by itself."""
    check_verdict("expect", config.expect)
    for name, logger in config.logger.items():
        with within(f"logger.{name}"):
            logger.check()


def forget() -> None:
    """For a new command in this process: another name of its folder, and files of options that may have changed."""
    run_stamp.cache_clear()
    _GROUPS.clear()
    _COMPOSED.clear()


def compose(overrides: list[str], name: str = "config") -> DictConfig:
    """The configuration of these overrides, inside or outside of a Hydra job.

    Options are composed once in a process. Values are put into a copy, as Hydra does last, in a thirtieth of the time.
    """
    import hydra
    from hydra.core.global_hydra import GlobalHydra

    if GlobalHydra.instance().is_initialized():
        return _composed_by_parts(overrides, name)
    register()
    with hydra.initialize_config_dir(str(conf_dir()), version_base=VERSION_BASE):
        return _composed_by_parts(overrides, name)


def experiment(field: str, name: str | None, overrides: list[str]) -> DictConfig:
    """The configuration of an experiment that a field names, with these overrides; `Invalid` if there is none."""
    from hydra.errors import MissingConfigException

    try:
        return compose([f"+experiment={name}", *overrides])
    except MissingConfigException as error:
        allowed = ", ".join(str(o) for o in error.options or []) or "(none here)"
        raise Invalid(field, name, f"must be one of the experiments {allowed}") from None


_GROUPS: dict[tuple[str, ...], frozenset[str]] = {}
"""Groups of options, by the folders that Hydra searches."""
_COMPOSED: dict[tuple[str, ...], DictConfig] = {}
"""What Hydra composed, by those folders, the file and the options chosen."""


def _composed_by_parts(overrides: list[str], name: str) -> DictConfig:
    import hydra
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    loader = GlobalHydra.instance().config_loader()
    searched = tuple(str(one.path) for one in loader.get_search_path().get_path())
    if searched not in _GROUPS:
        _GROUPS[searched] = frozenset(loader.list_groups(""))
    groups = _GROUPS[searched]
    parsed = OverridesParser.create(config_loader=loader).parse_overrides(overrides)
    values = [o for o in parsed if is_value(o, groups)]
    options = [o for o in parsed if o not in values]
    if any(o.is_sweep_override() for o in parsed) or not all(_chooses(o, groups) for o in options):
        return hydra.compose(name, overrides)
    lines = [str(o.input_line) for o in options]
    key = (*searched, name, *lines)
    if key not in _COMPOSED:
        _COMPOSED[key] = _composed_of_options(options, name, searched)
    made = copy.deepcopy(_COMPOSED[key])
    try:
        for value in values:
            OmegaConf.update(made, value.key_or_group, value.value(), merge=True)
    except (OmegaConfBaseException, AssertionError):  # Hydra raises its own error
        return hydra.compose(name, overrides)
    return made


def _composed_of_options(options: list[Override], name: str, searched: tuple[str, ...]) -> DictConfig:
    """Hydra composes the model and its data; options that are a node of their own are put beside them, where nothing
    else is chosen, as Hydra merges them: for ten of them in a tenth of the time."""
    import hydra
    from hydra.core.config_store import ConfigStore
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import MISSING, OmegaConf

    sources = GlobalHydra.instance().config_loader().get_sources()
    ours = any(
        each.provider == "main" and each.path == str(conf_dir()) for each in sources
    )  # it sets no option's fields
    own = [o for o in options if ours and _is_node_of_its_own(o, sources)]
    others = [o for o in options if o not in own]
    twice = len({o.key_or_group for o in options}) < len(options)
    if not own or twice or any(o.key_or_group != "model" for o in others):
        return hydra.compose(name, [str(o.input_line) for o in options])
    rest = [str(o.input_line) for o in others]
    key = (*searched, name, *rest)
    if key not in _COMPOSED:
        _COMPOSED[key] = hydra.compose(name, rest)
    made = copy.deepcopy(_COMPOSED[key])
    for o in own:
        group = o.key_or_group
        is_chosen = OmegaConf.is_missing(made, group) or made[group] is not None
        if o.is_add() == is_chosen:  # Hydra says what is wrong
            return hydra.compose(name, [str(each.input_line) for each in options])
        made[group] = MISSING
        made.merge_with({group: ConfigStore.instance().load(f"{group}/{o.value()}.yaml").node})
    return made


def _is_node_of_its_own(override: Override, sources: Sequence[ConfigSource]) -> bool:
    """Whether an override chooses a class of gradlab's or a plugin's that no file stands for, nor depends on."""
    group, option = override.key_or_group, override.value()
    if override.package or override.is_delete() or override.is_force_add() or not isinstance(option, str):
        return False
    if group in ("model", "logger") or (group, option) not in OPTIONS:
        return False
    return [each.scheme() for each in sources if each.is_config(f"{group}/{option}")] == ["structured"]


def is_value(override: Override, groups: Collection[str]) -> bool:
    """Whether an override sets a field that is there, to what replaces the last value: a mapping is merged."""
    name = override.key_or_group
    sets = not (override.is_add() or override.is_force_add() or override.is_delete() or override.package)
    plain = not override.is_sweep_override() and not isinstance(override.value(), dict)
    return sets and plain and not name.startswith("hydra") and name not in groups


def _chooses(override: Override, groups: Collection[str]) -> bool:
    """Whether an override chooses an option, or is Hydra's own."""
    return override.key_or_group in groups or override.key_or_group.startswith("hydra")
