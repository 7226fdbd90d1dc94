"""`hydra/sweeper=quadtree`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore

from gradlab.sweep.search.options import QuadtreeOption
from hydra_plugins.gradlab_sweepers.base import RoundSweeper

if TYPE_CHECKING:
    from gradlab.sweep.grid.axes import Point
    from gradlab.sweep.search.rounds import Search

ConfigStore.instance().store(group="hydra/sweeper", name="quadtree", node=QuadtreeOption, provider="gradlab")


class QuadtreeSweeper(RoundSweeper):
    """A map over two fields that is refined around its boundary."""

    def search(self, points: Sequence[Point]) -> Search:
        from gradlab.sweep.search.map_search import MapSearch, whole_fields

        option = self.option(QuadtreeOption)
        return MapSearch(option, points, whole_fields(option, self.composed))

    def report(self, search: Any, folder: Path, ended: str | None) -> None:
        from gradlab.sweep.search import map_report

        map_report.report(folder, search, ended)
