"""Averages of a network whose weights follow it, and whose batch statistics stay what they were at the start."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gradlab.watch.call_site import CallSite, call_stack
from gradlab.watch.events import Violation
from gradlab.watch.tracking.followers import alike
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

MAX_LOOKS = 1000
"""Times that their weights are compared: reading them waits for the device."""


class IdleStatistics:
    """Looks for layers that are no part of the models, and are evaluated without ever having seen a batch."""

    def __init__(self, models: Sequence[nn.Module], trackers: Sequence[OptimizerTracker]) -> None:
        self.models, self.trackers = models, trackers
        self.hook: Callable[..., None] | None = None
        """Registers a guarded hook."""
        self.looks = 0
        self.layers: WeakKeyDictionary[_BatchNorm, tuple[Tensor, bool, CallSite | None]] = WeakKeyDictionary()
        """Layer -> its weight when it was seen last, whether it had moved until then, and where it ran."""

    def after_step(self, tracker: OptimizerTracker) -> None:
        """Once the optimizer has made as many steps as before the first check."""
        if self.layers or self.hook is None:
            return
        own = {part for model in self.models for part in model.modules() if isinstance(part, _BatchNorm)}
        affine = {part.weight.shape for part in own if part.weight is not None and is_idle(part)}  # as may be meant
        shapes = {part.weight.shape for part in own if part.weight is not None} - affine
        held = {id(p) for each in self.trackers for p in each.params}
        others = [each for each in gc.get_objects() if issubclass(type(each), _BatchNorm)] if shapes else []
        for part in others:
            weight = None if part in own else part.weight
            if weight is not None and weight.shape in shapes and id(weight) not in held and is_idle(part):
                self.layers[part] = weight.detach().clone(), False, None
                self.hook(part.register_forward_pre_hook, self.before, part)

    def before(self, layer: _BatchNorm, *_: Any) -> None:
        """Such a layer is used."""
        before, moved, _site = self.layers[layer]
        self.looks += 1
        if self.looks > MAX_LOOKS or moved or layer.training or not alike(before, layer.weight):
            return
        if not torch.equal(before, layer.weight):
            stack = [site for site in call_stack() if site[0].co_name != "forward"]
            self.layers[layer] = layer.weight.detach().clone(), is_idle(layer), stack[0] if stack else None

    def at_end(self, writes: dict[int, CallSite | None]) -> Iterator[Violation]:
        """writes: address of a tensor -> where the loop writes to it between two steps."""
        idle = [(layer, site) for layer, (_, moved, site) in self.layers.items() if moved and is_idle(layer)]
        if idle:
            layer, site = idle[0]
            written = writes.get(layer.weight.data_ptr())
            yield "statistics-left-behind", written or site, f"{len(idle)} of its layers"


def is_idle(layer: _BatchNorm) -> bool:
    """Whether its statistics are those that a layer begins with."""
    mean, var = layer.running_mean, layer.running_var
    return mean is not None and var is not None and not mean.any() and bool((var == 1).all())
