"""fp16 at a usable speed on a CPU: products in fp32, results rounded to fp16.

PyTorch's own CPU kernels for fp16 products are plain loops, 10 to 100 times slower than fp32 ones. A GPU's tensor
cores take fp16 operands, add up in fp32 and store fp16; the same arithmetic on a CPU is a cast, a fast fp32 kernel and
a cast:

    C = fp16(fp32(A) @ fp32(B))        |C| >= 65520 becomes inf, |C| <= 2^-25 becomes 0, below 2^-14 it is subnormal

so overflow and underflow are those of fp16, in the forward and in the backward pass. Everything else is left alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

aten = torch.ops.aten
Kernel = Callable[..., Any]


class FastGemm(TorchDispatchMode):
    """Computes fp16 products on the CPU in fp32 and rounds what they return to fp16.

    Enter it around the forward AND the backward pass, in the thread that calls them: on a CPU the backward pass, and
    with it the recomputation of activation checkpointing, runs in the calling thread. Every op passes through it
    (about 5 microseconds each), so keep it away from fp32 and bf16 runs. `torch.compile` does not compile under it.
    Under `torch.inference_mode` autocast does not reach inside `nn.LSTM`, `nn.GRU` and `nn.RNN`, which then run in
    fp32: evaluate under `torch.no_grad`.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled under it. PyTorch would import its compiler to say so, and do so again at every op."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kernel = _kernels.get(func)
        if kernel is None:
            kernel = _kernels[func] = partial(_decompose, func) if func._can_decompose() else func
        return kernel(*args, **kwargs) if kwargs else kernel(*args)


@contextmanager
def context(cpu_gemm: str) -> Iterator[None]:
    """Wraps the forward and backward passes of an fp16 run on a CPU.

    `"fast"`: under `FastGemm`. `"native"`: PyTorch's own kernels, with oneDNN off where it has no fp16, since `nn.LSTM`
    would raise there. Any other name raises `ValueError`.
    """
    if cpu_gemm not in ("fast", "native"):
        raise ValueError(f"cpu_gemm is 'fast' or 'native', not {cpu_gemm!r}")
    mode: Callable[[], AbstractContextManager[Any]] = FastGemm  # PyTorch's base has no annotations
    with mode() if cpu_gemm == "fast" else without_onednn(torch.float16):
        yield


def _product(func: Kernel, *args: Any, **kwargs: Any) -> Any:
    """fp16(func(fp32(operands))) for an op whose tensors are all fp16; PyTorch refuses mixed ones."""
    for operand in args:
        if isinstance(operand, Tensor) and not (operand.dtype is torch.float16 and operand.is_cpu):
            return func(*args, **kwargs)
    return _narrow(func(*map(_widen, args), **kwargs))


def _attention(func: Kernel, query: Tensor, *args: Any, **kwargs: Any) -> Any:
    """softmax(Q K' / sqrt(D)) V, and its log-sum-exp, which PyTorch too keeps in fp32 for the backward pass."""
    if not (query.dtype is torch.float16 and query.is_cpu):
        return func(query, *args, **kwargs)
    options = {name: _widen(value) for name, value in kwargs.items()}  # the mask may be among them
    output, logsumexp = func(query.float(), *map(_widen, args), **options)
    return output.half(), logsumexp


def _fused(func: Kernel, first: Tensor, *args: Any, **kwargs: Any) -> Any:
    """As `_product`, where some tensors are not fp16: a log-sum-exp is fp32, an LSTM's workspace is bytes."""
    if not (first.dtype is torch.float16 and first.is_cpu):
        return func(first, *args, **kwargs)
    options = {name: _widen(value) for name, value in kwargs.items()}
    return _narrow(func(first.float(), *map(_widen, args), **options))


def _decompose(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Splits a composite op (`linear`, `matmul`, `conv2d`): under `torch.inference_mode` they arrive whole."""
    with FastGemm():  # type: ignore[no-untyped-call]
        return func.decompose(*args, **kwargs)


def _widen(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype is torch.float16 else value


def _narrow(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_narrow, value))
    return value.half() if isinstance(value, Tensor) and value.dtype is torch.float32 else value


# In `_attention` and `_fused` one call does several products. What lies between them (attention weights, an LSTM's
# state and its gradient from step to step) stays in fp32; only what the call returns is rounded.
_kernels: dict[Any, Kernel] = {
    func: partial(rule, func)
    for func, rule in {
        aten.mm.default: _product,
        aten.addmm.default: _product,
        aten.bmm.default: _product,
        aten.baddbmm.default: _product,
        aten.convolution.default: _product,
        aten.convolution_backward.default: _product,
        aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _fused,
        aten.mkldnn_rnn_layer.default: _fused,  # nn.LSTM: in fp16 «could not create a primitive» on most CPUs
        aten.mkldnn_rnn_layer_backward.default: _fused,
    }.items()
}


@functools.cache
def _lstm_runs(dtype: torch.dtype) -> bool:
    """Whether oneDNN has an LSTM of this type on this CPU. Its own flags also say so where it only has products."""
    supported = torch.ops.mkldnn._is_mkldnn_bf16_supported, torch.ops.mkldnn._is_mkldnn_fp16_supported
    if not supported[dtype is torch.float16]():
        return False
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), _disable_current_modes():
        try:
            with torch.autocast("cpu", dtype=dtype):
                nn.LSTM(2, 2)(torch.zeros(1, 1, 2))
        except RuntimeError:
            return False
    return True


@contextmanager
def without_onednn(dtype: torch.dtype) -> Iterator[None]:
    """Turn oneDNN off where it has no LSTM in fp16 (or bf16) on this CPU: `nn.LSTM` would raise."""
    onednn: Any = torch.backends.mkldnn  # its `flags()` would also touch the TF32 setting, which warns
    enabled = onednn.enabled
    onednn.enabled = enabled and _lstm_runs(dtype)
    try:
        yield
    finally:
        onednn.enabled = enabled
