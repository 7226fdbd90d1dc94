"""Recurrent layers of many lanes at once, stacked and rounded as PyTorch's own (see `recurrent_scans`).

L lanes, B batch, T time steps, F features of a step, D width
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gradlab.sweep.vectorized.recurrent_scans import GRUScan, LSTMScan, RecurrentWeights, RNNScan


def rnn(relu: bool) -> Callable[..., tuple[Tensor, ...]]:
    def layer(x: Tensor, first: list[Tensor], weights: RecurrentWeights) -> tuple[Tensor, ...]:
        hs = RNNScan.apply(relu, first[0], x, *weights)
        return hs, hs[-1]

    return layer


def lstm(x: Tensor, first: list[Tensor], weights: RecurrentWeights) -> tuple[Tensor, ...]:
    hs, cs = LSTMScan.apply(*first, x, *weights)
    return hs, hs[-1], cs[-1]


def gru(x: Tensor, first: list[Tensor], weights: RecurrentWeights) -> tuple[Tensor, ...]:
    hs = GRUScan.apply(first[0], x, *weights)
    return hs, hs[-1]


def layers_of(
    layer: Callable[..., tuple[Tensor, ...]], x: Tensor, first: list[Tensor], weights: list[Tensor], layers: int,
    biased: bool,
) -> list[Tensor]:  # fmt: skip
    """Stacked layers: x (T, L, B, F), first states (L, layers, B, D) -> outputs (T, L, B, D), last states as the first.

    Under autocast everything is rounded as for a fused kernel, computed with in fp32, and rounded again at the end, as
    such kernels do; on a CPU a GRU's state, and with it what it gives, is never rounded.
    """
    kind = x.device.type
    lowered = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    given = None if layer is gru and kind == "cpu" else lowered

    def enter(tensor: Tensor) -> Tensor:
        return tensor if lowered is None else tensor.to(lowered).float()

    last: list[list[Tensor]] = [[] for _ in first]
    each = len(weights) // layers
    with torch.autocast(kind, enabled=False):
        for i in range(layers):
            part = [enter(w) for w in weights[i * each : (i + 1) * each]]
            part += [] if biased else [part[0].new_zeros(part[0].shape[:2])] * 2
            x, *ends = layer(enter(x), [enter(h[:, i]) for h in first], RecurrentWeights(*part))
            for kept, end in zip(last, ends, strict=True):
                kept.append(end)
            x = x if given is None else x.to(given)
        ends = [torch.stack(kept, 1) for kept in last]
        return [x, *(ends if given is None else [end.to(given) for end in ends])]
