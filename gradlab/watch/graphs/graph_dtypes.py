"""The floating point types that a forward pass ran in, read from its autograd graph."""

from __future__ import annotations

from typing import Any

import torch

from gradlab.watch.call_site import CallSite
from gradlab.watch.graphs.loss_graph import MAX_NODES

GRAPHS_PER_SITE = 2
"""Graphs that are read for each line that calls backward: reading takes as long as a few operations per node."""
TRANSPARENT = {"_DDPSinkBackward"}
"""Nodes implemented in Python that contain no graph of their own."""
NEAR = 64
"""Nodes near the loss among which a compiled forward pass is searched."""


class GraphDtypes:
    """Caches the types of each line that calls backward."""

    def __init__(self) -> None:
        self.read: dict[CallSite | None, list[set[torch.dtype] | None]] = {}

    def of(self, site: CallSite | None, roots: list[torch.Tensor]) -> set[torch.dtype] | None:
        """Types of everything that has a gradient; None if unknown."""
        read = self.read.setdefault(site, [])
        if len(read) < GRAPHS_PER_SITE:
            read.append(graph_dtypes(roots))
        return None if None in read else set.union(*(dtypes for dtypes in read if dtypes is not None))


def graph_dtypes(roots: list[torch.Tensor]) -> set[torch.dtype] | None:
    """Types in the graph of the roots; None if it has too many nodes, or a node that contains a graph of its own."""
    queue = [root.grad_fn for root in roots if root.grad_fn is not None]
    visited, dtypes = set(queue), set()
    while queue:
        node = queue.pop()
        name = node.name()
        if len(visited) > MAX_NODES or (name.endswith("Backward") and name not in TRANSPARENT):
            return None
        dtypes |= {m.dtype for m in getattr(node, "_input_metadata", ()) if m is not None}
        inputs = {each for each, _ in node.next_functions if each is not None} - visited
        visited |= inputs
        queue += inputs
    return {dtype for dtype in dtypes if dtype.is_floating_point}


def new_compiled_forward(roots: list[torch.Tensor]) -> bool:
    """Whether a loss comes from a compiled forward pass that was not met before: such a pass calls no hooks."""
    queue: list[Any] = [root.grad_fn for root in roots if root.grad_fn is not None]
    for node in queue:
        if node.name().startswith("CompiledFunction"):
            visits = node.metadata.setdefault("gradlab_pass", [])
            visits.append(None)
            return len(visits) == 1
        if len(queue) < NEAR:
            queue += [each for each, _ in node.next_functions if each is not None]
    return False
