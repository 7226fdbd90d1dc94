"""The lines that have made the nodes of a graph, in an update that is followed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

from gradlab.watch.call_site import CallSite, call_site, call_stack
from gradlab.watch.followed_update import Reader, tensors_in
from gradlab.watch.graphs.loss_graph import MAX_NODES, PRODUCTS
from gradlab.watch.graphs.node_lines import SITE, Lines, lines_of
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker


class GraphSites(Reader):
    """Leaves the lines at the nodes, which live no longer for it."""

    def begin(self, tracker: OptimizerTracker, without: list[Tensor], flat: list[Tensor]) -> bool:
        return tracker.attempts == 1

    def follow(self, name: str, func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        for each in tensors_in([result]):
            node: Any = each.grad_fn
            if node is not None and SITE not in node.metadata:
                node.metadata[SITE] = call_stack() or (call_site(),)


def handed_site(node: Any, operands: Iterable[Any]) -> CallSite | None:
    """The line that has made a node of outputs of networks, or that calls the function which was handed them all."""
    return innermost(lines, list(networks_of(operands))) if (lines := lines_of(node)) else None


def innermost(lines: Lines, makers: list[Lines]) -> CallSite | None:
    """Of functions that were running, the line of the innermost one in which any of the makers was running too: the
    others were handed what these have made. The first line if that is unknown."""
    if not makers or not all(makers):
        return lines[0] if lines else None
    codes = {id(each[0]) for maker in makers for each in maker if each is not None}
    known = [each for each in lines if each is not None]
    return next((each for each in known if id(each[0]) in codes), known[0] if known else None)


def networks_of(nodes: Iterable[Any]) -> Iterator[Lines]:
    """The lines of the last layers below nodes: their own, or those of what is nearest above."""
    stack: list[tuple[Any, Lines]] = [(node, ()) for node in nodes if node is not None]
    seen = {node for node, _ in stack}
    while stack and len(seen) < MAX_NODES:
        node, lines = stack.pop()
        lines = lines_of(node) or lines
        if node.name() in PRODUCTS:
            yield lines
            continue
        new = {each for each, _ in node.next_functions if each is not None} - seen
        seen |= new
        stack += [(each, lines) for each in new]
