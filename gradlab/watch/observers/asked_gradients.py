"""Gradients that `torch.autograd.grad` is asked for: the loop makes of them what it writes into `.grad`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradlab.watch.call_site import CallSite, call_site
from gradlab.watch.followed_update import tensors_in
from gradlab.watch.graphs.networks_between import networks_between
from gradlab.watch.graphs.scaled_gradients import ScaledGradients
from gradlab.watch.instrumentation import Instrumentation
from gradlab.watch.loop_state import LoopState
from gradlab.watch.patches import AfterCall


class AskedGradients:
    """Observes `torch.autograd.grad`."""

    def __init__(self, loop: LoopState, scaled: ScaledGradients) -> None:
        self.loop, self.scaled = loop, scaled
        self.in_grad = False
        self.builds_graph = False
        """Whether the latest gradients have a graph of their own."""
        self.parts: set[tuple[CallSite | None, int, int]] = set()
        """Line, optimizer and a weight of its of each part that gradients were asked for."""

    def install(self, instrumentation: Instrumentation) -> None:
        instrumentation.patch(torch.autograd, "grad", self.on_grad)

    def on_grad(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AfterCall | None:
        loop = self.loop
        if loop.backward_depth or self.in_grad:  # a function mode calls it again, within itself
            return None
        self.in_grad = True
        given = dict(zip(("outputs", "inputs", "grad_outputs"), args, strict=False)) | kwargs
        roots, site = tensors_in([given.get("outputs")]), call_site()
        loss, _, scaled = loop.scaler.total(roots)
        ids = {id(p) for p in tensors_in([given.get("inputs")])}
        loop.unheld.note_differentiated(ids)
        loop.seen.ask(self.note_part, site, roots, ids)

        def after(result: Any, error: bool) -> None:
            self.in_grad = False
            if scaled and loop.scaler.enabled and given.get("grad_outputs") is None:  # which may divide by the scale
                self.scaled.mark(tensors_in(list(result or ())), site)
            shapes = [None if g is None else g.shape for g in result or ()]  # the inputs may have been an iterator
            for tracker in loop.trackers:
                own = ids & tracker.ids if ids else shapes == [p.shape for p in tracker.params]
                # After a graph of the gradients, what is differentiated is made of them and is no loss.
                if own and not (tracker.functional and self.builds_graph):
                    tracker.functional.append(number(loss))
                    self.builds_graph = bool(given.get("create_graph"))

        return after

    def note_part(self, site: CallSite | None, roots: list[Tensor], asked: set[int]) -> None:
        """Before gradients are computed for these weights alone: does their loss depend on others of their optimizer?

        Where these get theirs of another loss, one network is trained against the other, as in a GAN of one optimizer.
        """
        node: Any = roots[0].grad_fn if len(roots) == 1 else None
        for tracker in self.loop.trackers if node is not None else ():
            part = asked & tracker.ids
            key = site, tracker.index, min(part, default=0)
            if part and part != tracker.ids and key not in self.parts:
                self.parts.add(key)
                between = networks_between(roots, {id_: int(id_ in part) for id_ in tracker.ids}, {})
                loss = node.metadata.setdefault("gradlab_part", object())  # the same one of the same loss
                tracker.others.parts.append((part, (0, 1) in between, loss))


def number(loss: Any) -> Any:
    """A loss that is read without waiting is a float; on a device it stays a tensor."""
    return loss.item() if isinstance(loss, Tensor) and loss.device.type == "cpu" else loss
