"""Functions of the user's that turn gradients round: one loss then trains two networks against each other."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from gradlab.watch.events import Seen
from gradlab.watch.graphs.loss_graph import MAX_NODES

MAX_ASKED = 16
"""Passes whose graphs are read."""
OPPOSITE = -0.999
"""Cosine below which a gradient is turned round."""
FEW = 16
"""Elements from which nothing is concluded."""
SAMPLED = 4096
"""Elements that are compared at most."""
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
        """All that it passes on of a size that it was given has to be turned round: a difference turns one of two."""
        turned = []
        for one in dense(passed):
            if others := [each for each in dense(given) if each.numel() == one.numel()]:
                known = {is_turned(one, other) for other in others}
                turned.append(True if True in known else None if None in known else False)
        self.seen.reverses |= bool(turned) and all(turned)
        self.straight |= {kind} if False in turned else set()


def dense(gradients: Gradients) -> list[torch.Tensor]:
    known = [g for g in gradients if g is not None and g.layout is torch.strided and not hasattr(g, "to_local")]
    return [g for g in known if g.is_floating_point() and g.numel() >= FEW]


def is_turned(passed: torch.Tensor, given: torch.Tensor) -> bool | None:
    """None where too few elements are not zero: the cosine of two numbers is always 1 or -1."""
    one, two = sample(passed), sample(given)
    if int((one * two != 0).sum()) < FEW:
        return None
    return float(one @ two) < OPPOSITE * float(one.norm() * two.norm())


def sample(gradient: torch.Tensor) -> torch.Tensor:
    """Elements from all over it; a copy of the whole may not fit into memory."""
    count = min(gradient.numel(), SAMPLED)
    step = (gradient.numel() // count - 1) | 1  # odd, so that it is no multiple of a usual width
    places = torch.arange(count, device=gradient.device) * step
    return gradient[torch.unravel_index(places, gradient.shape)].double()
