"""The lines that have made the nodes of a graph, in an update that is followed."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gradlab.watch.call_site import CallSite, call_site
from gradlab.watch.followed_update import Reader, tensors_in
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

SITE = "gradlab_site"
"""Key of a line in the metadata of a node."""


class GraphSites(Reader):
    """Leaves the lines at the nodes, which live no longer for it."""

    def begin(self, tracker: OptimizerTracker, without: list[Tensor], flat: list[Tensor]) -> bool:
        return tracker.attempts == 1

    def follow(self, name: str, func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        for each in tensors_in([result]):
            node: Any = each.grad_fn
            if node is not None:
                node.metadata.setdefault(SITE, call_site())


def site_of(node: Any) -> CallSite | None:
    """The line that has made a node, if it was made in such an update."""
    return node.metadata.get(SITE)  # type: ignore[no-any-return]
