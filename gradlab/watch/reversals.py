"""Functions of the user's that turn gradients round: one loss then trains two networks against each other."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from gradlab.watch.events import Seen
from gradlab.watch.loss_graph import MAX_NODES

MAX_ASKED = 16
"""Passes whose graphs are read."""
OPPOSITE = -0.999
"""Cosine below which a gradient is turned round."""
Gradients = tuple["torch.Tensor | None", ...]


class Reversals:
    """Reads the graphs of some backward passes, and compares what such functions are given with what they pass on."""

    def __init__(self, seen: Seen) -> None:
        self.seen, self.num_asked = seen, 0
        self.straight: set[type] = set()
        """Classes of functions that do not."""

    def ask(self, roots: list[torch.Tensor], guarded: Callable[..., Any]) -> None:
        """Before a backward pass. guarded: makes a call that must not end the training."""
        if self.seen.reverses or self.num_asked == MAX_ASKED:
            return
        self.num_asked += 1
        queue: list[Any] = [root.grad_fn for root in roots if root.grad_fn is not None]
        found = set(queue)
        while queue and len(found) < MAX_NODES:
            node = queue.pop()
            if isinstance(node, BackwardCFunction) and type(node) not in self.straight:
                node.register_hook(partial(self.on_backward, guarded, type(node)))
            inputs = {each for each, _ in node.next_functions if each is not None} - found
            found |= inputs
            queue += inputs

    def on_backward(self, guarded: Callable[..., Any], kind: type, passed: Gradients, given: Gradients) -> None:
        guarded(self.seen.ask, self.compare, kind, passed, given)

    def compare(self, kind: type, passed: Gradients, given: Gradients) -> None:
        for one, two in [(a, b) for a in dense(passed) for b in dense(given) if a.numel() == b.numel()]:
            if (size := float(one.norm() * two.norm())) > 0:
                is_turned = float(one @ two) < OPPOSITE * size
                self.seen.reverses |= is_turned
                self.straight |= set() if is_turned else {kind}


def dense(gradients: Gradients) -> list[torch.Tensor]:
    kept = [g for g in gradients if g is not None and not g.is_sparse and not hasattr(g, "to_local")]
    return [g.flatten().double() for g in kept]
