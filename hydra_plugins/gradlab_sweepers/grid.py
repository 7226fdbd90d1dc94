"""`hydra/sweeper=basic`, which is the default."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper, BasicSweeperConf
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Override

if TYPE_CHECKING:
    from gradlab.sweep.grid.config_loader import SweepConfigLoader

ConfigStore.instance().store(
    group="hydra/sweeper",
    name="basic",
    node=BasicSweeperConf(_target_="hydra_plugins.gradlab_sweepers.grid.GridSweeper"),
    provider="gradlab",
)


class GridSweeper(BasicSweeper):
    """Hydra's own; jobs are counted before they are made, and composed as quickly as values change to check them."""

    checker: SweepConfigLoader | None = None

    @staticmethod
    def split_arguments(overrides: list[Override], max_batch_size: int | None) -> list[list[list[str]]]:
        from gradlab.sweep.grid.jobs import check_number

        check_number(overrides)
        return BasicSweeper.split_arguments(overrides, max_batch_size)

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        from gradlab.base.distributed import world
        from gradlab.sweep.grid.config_loader import SweepConfigLoader
        from gradlab.sweep.progress import begins

        assert self.hydra_context is not None and self.config is not None
        loader: Any = self.hydra_context.config_loader
        if self.checker is None:
            self.checker = loader if isinstance(loader, SweepConfigLoader) else SweepConfigLoader(loader)
        for overrides in batch:
            self.checker.load_sweep_config(self.config, list(overrides))
        if self.batch_index == 1 and world().main:  # the first of all, if they are launched in parts
            assert self.overrides is not None
            print(begins(Path(self.config.hydra.sweep.dir), sum(map(len, self.overrides))), flush=True)
