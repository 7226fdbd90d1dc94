"""Composing a configuration with Hydra: what `python -m gradlab` would run for these overrides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradlab.base.conf import conf_dir
from gradlab.base.option import Invalid

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from gradlab.config.schema import Config

SILENT = ["hydra.output_subdir=null", "hydra/job_logging=disabled", "hydra/hydra_logging=disabled"]
"""Overrides of the ranks that neither write nor speak."""
_STAMP: list[str] = []


def run_stamp() -> str:
    """Name of this process's run folder: the same on every rank, another for every run."""
    if not _STAMP:
        from datetime import datetime
        from secrets import token_hex

        from gradlab.base.distributed import world

        _STAMP.append(world().broadcast(f"{datetime.now():%Y-%m-%d_%H-%M-%S}_{token_hex(2)}"))
    return _STAMP[0]


def register() -> None:
    """Tell Hydra of the schema and OmegaConf of the resolvers."""
    from omegaconf import OmegaConf

    from gradlab.config import resolvers
    from gradlab.config import schema as config

    config.register()
    # cached in the configuration, and with it for the jobs of a sweep that run in other processes
    OmegaConf.register_new_resolver("run_stamp", run_stamp, replace=True, use_cache=True)
    OmegaConf.register_new_resolver("for_model", resolvers.for_model, replace=True)
    resolvers.register()


def check(config: Config) -> None:
    """What a configuration cannot check by itself."""
    from gradlab.config.schema import prefixed
    from gradlab.diagnosis.options import check_verdict

    check_verdict("expect", config.expect)
    for name, logger in config.logger.items():
        try:
            logger.check()
        except Invalid as error:
            raise prefixed(f"logger.{name}", error) from None


def compose(overrides: list[str], name: str = "config") -> DictConfig:
    """The configuration of these overrides, inside or outside of a Hydra job."""
    import hydra
    from hydra.core.global_hydra import GlobalHydra

    if GlobalHydra.instance().is_initialized():
        return hydra.compose(name, overrides)
    register()
    with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return hydra.compose(name, overrides)
