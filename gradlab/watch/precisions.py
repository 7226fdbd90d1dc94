"""In which types of numbers a forward pass ran, read from its graph."""

from __future__ import annotations

from typing import Any

import torch

from gradlab.watch.where import Site

TIMES = 2
"""Graphs that are looked at for each line that calls backward: each takes as long as a few operations a node."""
NODES = 20_000
KNOWN = {"_DDPSinkBackward"}
"""Nodes of Python that hide nothing behind them."""
NEAR = 64


class Precisions:
    """Remembers what was seen for each line."""

    def __init__(self) -> None:
        self.seen: dict[Site | None, list[set[torch.dtype] | None]] = {}

    def of(self, where: Site | None, roots: list[torch.Tensor]) -> set[torch.dtype] | None:
        """Types of all that has a gradient; None where that cannot be told."""
        seen = self.seen.setdefault(where, [])
        if len(seen) < TIMES:
            seen.append(types(roots))
        return None if None in seen else set.union(*(s for s in seen if s is not None))


def types(roots: list[torch.Tensor]) -> set[torch.dtype] | None:
    """Of what a graph's nodes give; None if there are too many, or one of them holds a graph of its own."""
    waiting = [root.grad_fn for root in roots if root.grad_fn is not None]
    met, found = set(waiting), set()
    while waiting:
        node = waiting.pop()
        name = node.name()
        if len(met) > NODES or (name.endswith("Backward") and name not in KNOWN):
            return None
        found |= {m.dtype for m in getattr(node, "_input_metadata", ()) if m is not None}
        following = {n for n, _ in node.next_functions if n is not None} - met
        met |= following
        waiting += following
    return {t for t in found if t.is_floating_point}


def compiled_anew(roots: list[torch.Tensor]) -> bool:
    """Whether a loss comes from a compiled forward pass that was not met before: such a pass calls no hooks."""
    waiting: list[Any] = [root.grad_fn for root in roots if root.grad_fn is not None]
    for node in waiting:
        if node.name().startswith("CompiledFunction"):
            known = node.metadata.setdefault("gradlab_pass", [])
            known.append(None)
            return len(known) == 1
        if len(waiting) < NEAR:
            waiting += [n for n, _ in node.next_functions if n is not None]
    return False
