"""`hydra/sweeper=boundary`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hydra.core.config_store import ConfigStore

from gradlab.sweep.search.options import BoundaryOption
from hydra_plugins.gradlab_sweepers.base import RoundSweeper

if TYPE_CHECKING:
    from gradlab.sweep.grid.axes import Point
    from gradlab.sweep.search.search import Search

ConfigStore.instance().store(group="hydra/sweeper", name="boundary", node=BoundaryOption, provider="gradlab")


class BoundarySweeper(RoundSweeper):
    """The last stable value of a field for each point of the other axes."""

    def search(self, points: Sequence[Point]) -> Search:
        from gradlab.sweep.search.boundary import Boundary

        option = self.option(BoundaryOption)
        value = self.composed(option.field)
        whole = isinstance(value, int) and not isinstance(value, bool)
        return Boundary(option, points, float(value) if isinstance(value, (int, float)) else None, whole)
