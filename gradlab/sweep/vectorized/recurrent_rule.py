"""The rule of nn.RNN, nn.GRU and nn.LSTM for lanes, and the gradients of their inputs, followed in time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradlab.sweep.vectorized.recurrent import layers_of
from gradlab.sweep.vectorized.vmap_rule import vmap_rule


class Taps(dict[str, Tensor]):
    """Gradient norms of recurrent modules' inputs at each time step, (L, T), by the module's name."""

    name = ""
    """The module under way."""


def recurrent_rule(layer: Callable[..., Any], fused: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """nn.RNN, nn.GRU or nn.LSTM over a padded batch: (outputs, last state, and an LSTM's last cell).

    fused: PyTorch's own function, called lane by lane on a CPU where it has a kernel for the whole sequence, which is
    faster than batched products step by step.
    """

    def rule(
        taps: Taps | None, x: Tensor, hx: Any, weights: Any, biased: bool, layers: int, dropout: float, training: bool,
        bidirectional: bool, batch_first: bool,
    ) -> Any:  # fmt: skip
        if bidirectional or (dropout and training and layers > 1) or not isinstance(biased, bool):
            return None
        several = isinstance(hx, tuple | list)
        states = len(hx) if several else 1
        time = 2 if batch_first else 1

        @vmap_rule
        def run(x: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
            if taps is not None:
                x = tapped(x, taps, time)
            if fused is None or x.device.type != "cpu":
                first, own = list(tensors[:states]), list(tensors[states:])
                outputs, *last = layers_of(layer, x.movedim(time, 0), first, own, layers, biased)
                return outputs.movedim(0, time), *last
            how = biased, layers, dropout, training, bidirectional, batch_first
            lanes = []
            for own_x, *of_it in zip(x, *tensors, strict=True):
                begin = tuple(of_it[:states]) if several else of_it[0]
                lanes.append(fused(own_x, begin, of_it[states:], *how))
            return tuple(map(torch.stack, zip(*lanes, strict=True)))

        return run(x, *(hx if several else [hx]), *weights)

    return rule


def tapped(x: Tensor, taps: Taps, time: int) -> Tensor:
    """Ask for the gradient of a recurrent module's inputs, and keep its norm at each step, (L, T)."""
    x = x if x.requires_grad else x.detach().requires_grad_()
    name = taps.name

    def after(grad: Tensor) -> None:
        dims = tuple(d for d in range(1, grad.dim()) if d != time)
        taps[name] = torch.linalg.vector_norm(grad, dim=dims, dtype=torch.float64)

    x.register_hook(after)
    return x
