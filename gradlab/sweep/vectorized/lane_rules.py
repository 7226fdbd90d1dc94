"""Operations whose weights differ from lane to lane, where `torch.func.vmap` has no rule for them, or a slow one.

Inside `LaneRules()` a model under vmap calls these instead. They get every tensor with its lanes first, and are plain
differentiable PyTorch.

L lanes, B batch, T time steps, F features of a step, D width, H heads, K and N inputs and outputs of a linear layer
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gradlab.sweep.vectorized.autocast import LOWERED, WIDENED, WIDENED_ON_CUDA, as_autocast, lowered
from gradlab.sweep.vectorized.products import multiplied
from gradlab.sweep.vectorized.recurrent import gru, lstm, rnn
from gradlab.sweep.vectorized.recurrent_rule import Taps, recurrent_rule
from gradlab.sweep.vectorized.vmap_rule import vmap_rule

SHORT = 256
"""Up to so many steps a CPU is faster with a whole matrix of attention weights than with the fused kernel."""


@vmap_rule
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (L, ..., K), weight (L, N, K), bias (L, N) -> (L, ..., N)."""
    x, weight, bias = lowered(x, weight, bias)  # type: ignore[assignment]
    rows = x.flatten(1, -2) if x.dim() > 2 else x.unsqueeze(1)
    out = (
        torch.bmm(rows, weight.transpose(1, 2))
        if bias is None
        else torch.baddbmm(bias.unsqueeze(1), rows, weight.transpose(1, 2))
    )
    return out.unflatten(1, x.shape[1:-1]) if x.dim() > 2 else out.squeeze(1)


@vmap_rule
def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Tensor:
    """softmax(q k' * scale) v without weights of its own: lanes are more samples. q, k, v: (L, B, H, T, D)."""
    q, k, v = lowered(q, k, v)  # type: ignore[assignment]
    steps = q.shape[-2]
    if q.device.type != "cpu" or max(steps, k.shape[-2]) > SHORT:
        flat: Any = [t.flatten(0, 1) for t in (q, k, v)]
        return F.scaled_dot_product_attention(*flat, is_causal=causal, scale=scale).unflatten(0, q.shape[:2])  # type: ignore
    with torch.autocast(q.device.type, enabled=False):  # the fused kernel too stays in fp32 between its products
        rows, keys, values = (t.float().flatten(0, 2) for t in (q, k, v))  # (L*B*H, T, D)
        mask = torch.full((steps, keys.shape[1]), -torch.inf, device=q.device).triu_(1) if causal else None
        weights = multiplied(rows * (scale or q.shape[-1] ** -0.5), keys.mT, mask).softmax(-1)
        out: Tensor = multiplied(weights, values).unflatten(0, q.shape[:3]).to(q.dtype)
        return out


@vmap_rule
def batch_norm(
    x: Tensor, mean: Tensor | None, var: Tensor | None, weight: Tensor | None, bias: Tensor | None, training: bool,
    momentum: float, eps: float,
) -> Tensor:  # fmt: skip
    """x (L, B, C, ...): channels of all lanes side by side. PyTorch's own rule fails on fp16 with fp32 statistics."""
    lanes, _, channels = x.shape[:3]
    of_channels = [t if t is None else t.reshape(lanes * channels) for t in (mean, var, weight, bias)]
    out: Tensor = F.batch_norm(x.transpose(0, 1).flatten(1, 2), *of_channels, training, momentum, eps)  # type: ignore
    out = out.unflatten(1, (lanes, channels))
    return out.transpose(0, 1)


@vmap_rule
def group_norm(x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """x (L, B, C, ...), as for batch norm."""
    lanes, _, channels = x.shape[:3]
    of_channels = [t if t is None else t.reshape(lanes * channels) for t in (weight, bias)]
    out: Tensor = F.group_norm(x.transpose(0, 1).flatten(1, 2), lanes * groups, *of_channels, eps)  # type: ignore
    out = out.unflatten(1, (lanes, channels))
    return out.transpose(0, 1)


class LaneRules(TorchFunctionMode):
    """Replaces calls of functions that have a rule here by that rule."""

    def __init__(self, taps: Taps | None = None) -> None:
        """taps: where given, gets the gradient norms of a recurrent layer's inputs in the backward pass."""
        super().__init__()
        self.taps = taps

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in LOWERED or func in WIDENED or func in WIDENED_ON_CUDA:
            args, kwargs = as_autocast(func, args, kwargs)
        if (rule := RULES.get(func)) is not None and (out := rule(self.taps, *args, **kwargs)) is not None:
            return out
        return func(*args, **kwargs)


def linear_rule(taps: Taps | None, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    return linear(input, weight, bias) if weight.dim() == 2 else None


def attention_rule(
    taps: Taps | None, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor | None:  # fmt: skip
    """None, for PyTorch's own way, where it is more than this one is for."""
    if attn_mask is not None or dropout_p or enable_gqa or query.dim() != 4:
        return None
    return attention(query, key, value, is_causal, scale)


def batch_norm_rule(
    taps: Taps | None, input: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
    weight: Tensor | None = None, bias: Tensor | None = None, training: bool = False, momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:  # fmt: skip
    return batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


def group_norm_rule(
    taps: Taps | None, input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor | None:  # fmt: skip
    return group_norm(input, num_groups, weight, bias, eps)


def layer_norm_rule(
    taps: Taps | None, input: Tensor, normalized_shape: Any, weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor | None:  # fmt: skip
    """In half precision with fp32 weights, which vmap would not round."""
    if input.dtype not in (torch.float16, torch.bfloat16):
        return None
    return F.layer_norm(input.float(), normalized_shape, weight, bias, eps).to(input.dtype)


_VF: Any = torch._C._VariableFunctions
RULES: dict[Any, Callable[..., Any]] = {
    F.linear: linear_rule,
    F.scaled_dot_product_attention: attention_rule,
    F.batch_norm: batch_norm_rule,
    F.group_norm: group_norm_rule,
    F.layer_norm: layer_norm_rule,
    _VF.rnn_tanh: recurrent_rule(rnn(relu=False)),
    _VF.rnn_relu: recurrent_rule(rnn(relu=True)),
    _VF.gru: recurrent_rule(gru),
    _VF.lstm: recurrent_rule(lstm, _VF.lstm),
}
