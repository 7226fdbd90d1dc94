"""`hydra/sweeper=boundary`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore

from gradlab.sweep.search.options import BoundaryOption
from hydra_plugins.gradlab_sweepers.base import RoundSweeper

if TYPE_CHECKING:
    from gradlab.sweep.grid.axes import Point
    from gradlab.sweep.search.rounds import Search

ConfigStore.instance().store(group="hydra/sweeper", name="boundary", node=BoundaryOption, provider="gradlab")


class BoundarySweeper(RoundSweeper):
    """The last stable value of a field for each point of the other axes."""

    def search(self, points: Sequence[Point]) -> Search:
        from gradlab.sweep.search.boundary_search import BoundarySearch

        option = self.option(BoundaryOption)
        value = self.composed(option.field)
        whole = isinstance(value, int) and not isinstance(value, bool)
        return BoundarySearch(option, points, float(value) if isinstance(value, (int, float)) else None, whole)

    def report(self, search: Any, folder: Path, ended: str | None) -> None:
        from gradlab.sweep.search import edge_report

        edge_report.report(folder, search, ended)
