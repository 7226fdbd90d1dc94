"""Composing a configuration with Hydra: what `python -m gradlab` would run for these overrides."""

from __future__ import annotations

import functools
from datetime import datetime
from secrets import token_hex
from typing import TYPE_CHECKING

from gradlab.base.conf import conf_dir
from gradlab.base.option import Invalid
from gradlab.config import schema
from gradlab.diagnosis.options import check_verdict

if TYPE_CHECKING:
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
        try:
            logger.check()
        except Invalid as error:
            raise schema.prefixed(f"logger.{name}", error) from None


def compose(overrides: list[str], name: str = "config") -> DictConfig:
    """The configuration of these overrides, inside or outside of a Hydra job."""
    import hydra
    from hydra.core.global_hydra import GlobalHydra

    if GlobalHydra.instance().is_initialized():
        return hydra.compose(name, overrides)
    register()
    with hydra.initialize_config_dir(str(conf_dir()), version_base=VERSION_BASE):
        return hydra.compose(name, overrides)
