"""Operations whose weights differ from lane to lane, where `torch.func.vmap` has no rule for them, or a slow one.

Inside `lane_rules()` a model under vmap calls these instead. They get every tensor with its lanes first, and are plain
differentiable PyTorch.

L lanes, B batch, T time steps, F features of a step, D width, H heads, K and N inputs and outputs of a linear layer
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gradlab.sweep.recurrent import gru, layers_of, lstm, rnn

SHORT = 256
"""Up to so many steps a CPU is faster with a whole matrix of attention weights than with the fused kernel."""


class Taps(dict[str, Tensor]):
    """Gradient norms of recurrent modules' inputs at each time step, (L, T), by the module's name."""

    name = ""
    """The module under way."""


is_batched: Callable[[Tensor], bool] = torch._C._functorch.is_batchedtensor


def whole(rule: Callable[..., Any]) -> Callable[..., Any]:
    """A function for use under vmap: `rule` gets its tensors with the lanes as their first dimension.

    It gives None where no tensor differs between lanes.
    """

    class Whole(torch.autograd.Function):
        @staticmethod
        def forward(*args: Any) -> Any:
            raise RuntimeError("no tensor of this call differs between lanes")

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
            lanes = info.batch_size

            def first(x: Any, dim: int | None) -> Any:
                if not isinstance(x, Tensor):
                    return x
                return x.expand(lanes, *x.shape) if dim is None else x.movedim(dim, 0)

            out = rule(*(first(x, dim) for x, dim in zip(args, in_dims, strict=True)))
            return out, (0,) * len(out) if isinstance(out, tuple) else 0

    def call(*args: Any) -> Any:
        return Whole.apply(*args) if any(isinstance(x, Tensor) and is_batched(x) for x in args) else None

    return call


def lowered(*tensors: Tensor | None) -> list[Tensor | None]:
    """As autocast, where it is on, hands tensors to a product."""
    kind = next(t for t in tensors if t is not None).device.type
    if not torch.is_autocast_enabled(kind):
        return list(tensors)
    dtype = torch.get_autocast_dtype(kind)
    return [t if t is None else t.to(dtype) for t in tensors]


def as_autocast(func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Arguments as autocast, where it is on, would hand them to this function: vmap takes some apart before it can."""
    kind = next((x.device.type for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), "cpu")
    if not torch.is_autocast_enabled(kind) or (func in WIDENED_ON_CUDA and kind != "cuda"):
        return args, kwargs
    dtype = torch.get_autocast_dtype(kind) if func in LOWERED else torch.float32

    def cast(x: Any) -> Any:
        return x.to(dtype) if isinstance(x, Tensor) and x.dtype in (torch.float32, torch.float16, torch.bfloat16) else x

    return tuple(map(cast, args)), {k: cast(x) for k, x in kwargs.items()}


@whole
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


@whole
def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Tensor:
    """softmax(q k' * scale) v without weights of its own: lanes are more samples. q, k, v: (L, B, H, T, D)."""
    q, k, v = lowered(q, k, v)  # type: ignore[assignment]
    steps = q.shape[-2]
    if q.device.type != "cpu" or max(steps, k.shape[-2]) > SHORT:
        flat: Any = [t.flatten(0, 1) for t in (q, k, v)]
        return F.scaled_dot_product_attention(*flat, is_causal=causal, scale=scale).unflatten(0, q.shape[:2])  # type: ignore
    with torch.autocast(q.device.type, enabled=False):  # the fused kernel too stays in fp32 between its products
        rows, keys, values = (t.float().flatten(0, 2) for t in (q, k, v))  # (L*B*H, T, D)
        if causal:
            mask = torch.full((steps, keys.shape[1]), -torch.inf, device=q.device).triu_(1)
        else:
            mask = torch.zeros((), device=q.device)
        weights = torch.baddbmm(mask, rows, keys.transpose(1, 2), alpha=scale or q.shape[-1] ** -0.5).softmax(-1)
        return torch.bmm(weights, values).unflatten(0, q.shape[:3]).to(q.dtype)


@whole
def batch_norm(
    x: Tensor, mean: Tensor | None, var: Tensor | None, weight: Tensor | None, bias: Tensor | None, training: bool,
    momentum: float, eps: float,
) -> Tensor:  # fmt: skip
    """x (L, B, C, ...): channels of all lanes side by side. PyTorch's own rule fails on halves with fp32 statistics."""
    lanes, _, channels = x.shape[:3]
    of_channels = [t if t is None else t.reshape(lanes * channels) for t in (mean, var, weight, bias)]
    out = F.batch_norm(x.transpose(0, 1).flatten(1, 2), *of_channels, training, momentum, eps)  # type: ignore
    return out.unflatten(1, (lanes, channels)).transpose(0, 1)


@whole
def group_norm(x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """x (L, B, C, ...), as for batch norm."""
    lanes, _, channels = x.shape[:3]
    of_channels = [t if t is None else t.reshape(lanes * channels) for t in (weight, bias)]
    out = F.group_norm(x.transpose(0, 1).flatten(1, 2), lanes * groups, *of_channels, eps)  # type: ignore
    return out.unflatten(1, (lanes, channels)).transpose(0, 1)


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
        if (rule := RULES.get(func)) is not None and (out := rule(self, *args, **kwargs)) is not None:
            return out
        return func(*args, **kwargs)


@contextmanager
def lane_rules(taps: Taps | None = None) -> Iterator[None]:
    """Use the rules of this file inside."""
    with LaneRules(taps):
        yield


def linear_rule(mode: LaneRules, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    return linear(input, weight, bias) if weight.dim() == 2 else None


def attention_rule(
    mode: LaneRules, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor | None:  # fmt: skip
    """None, for PyTorch's own way, where it is more than this one is for."""
    if attn_mask is not None or dropout_p or enable_gqa or query.dim() != 4:
        return None
    return attention(query, key, value, is_causal, scale)


def batch_norm_rule(
    mode: LaneRules, input: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
    weight: Tensor | None = None, bias: Tensor | None = None, training: bool = False, momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:  # fmt: skip
    return batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


def group_norm_rule(
    mode: LaneRules, input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor | None:  # fmt: skip
    return group_norm(input, num_groups, weight, bias, eps)


def layer_norm_rule(
    mode: LaneRules, input: Tensor, normalized_shape: Any, weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor | None:  # fmt: skip
    """Of halves with fp32 weights, which vmap would not round."""
    if input.dtype not in (torch.float16, torch.bfloat16):
        return None
    return F.layer_norm(input.float(), normalized_shape, weight, bias, eps).to(input.dtype)


def recurrent_rule(layer: Callable[..., Any], fused: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """nn.RNN, nn.GRU or nn.LSTM over a padded batch: (outputs, last state, and an LSTM's last cell).

    fused: PyTorch's own function, called lane by lane on a CPU where it has a kernel for the whole sequence, which is
    faster than batched products step by step.
    """

    def rule(
        mode: LaneRules, x: Tensor, hx: Any, weights: Any, biased: bool, layers: int, dropout: float, training: bool,
        bidirectional: bool, batch_first: bool,
    ) -> Any:  # fmt: skip
        if bidirectional or (dropout and training and layers > 1) or not isinstance(biased, bool):
            return None
        several = isinstance(hx, tuple | list)
        states = len(hx) if several else 1
        time = 2 if batch_first else 1

        @whole
        def run(x: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
            if mode.taps is not None:
                x = tapped(x, mode.taps, time)
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


LOWERED: set[Any] = {
    F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d,
    F.scaled_dot_product_attention, F.prelu, torch.prelu, torch.linalg.vecdot,
    torch.baddbmm, torch.addmm, torch.addbmm, Tensor.baddbmm, Tensor.addmm, Tensor.addbmm,
}  # fmt: skip
"""Functions that autocast computes in halves, and that vmap would compute in fp32."""
WIDENED: set[Any] = {
    F.cross_entropy, F.nll_loss, F.l1_loss, F.binary_cross_entropy_with_logits, F.poisson_nll_loss,
    F.hinge_embedding_loss, F.cosine_embedding_loss,
}  # fmt: skip
"""Functions that autocast computes in fp32, and that vmap would compute in halves."""
WIDENED_ON_CUDA: set[Any] = {
    F.layer_norm, F.softmax, torch.softmax, Tensor.softmax, F.log_softmax, torch.log_softmax, Tensor.log_softmax,
}  # fmt: skip
"""And those that it computes in fp32 on CUDA devices only."""

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
