"""The fp16 products of a CPU run: exact in fp32, rounded once, in both passes, and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from gradlab.update.fp16_cpu import FastGemm, context

aten = torch.ops.aten
HALF = torch.float16
ULP = 2.0**-11  # half of fp16's relative spacing: the largest error of one rounding
TINY = 2.0**-25  # half of its smallest subnormal


class Spy(TorchDispatchMode):
    """Records each op with its operands' dtypes; entered before `FastGemm` it sees the ops that `FastGemm` calls."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[Any, torch.dtype]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.update((func, arg.dtype) for arg in args if isinstance(arg, Tensor))
        return func(*args, **(kwargs or {}))


def randn(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + 17 * sum(shape))
    return torch.randn(*shape, generator=generator).half()


def strided(*shape: int) -> Tensor:
    return randn(shape[0] * 2, *shape[1:-1], shape[-1] * 3)[::2, ..., ::3]


def gradients(op: Callable[..., Tensor], operands: list[Tensor], cotangent: Tensor | None = None) -> list[Tensor]:
    """The output of `op`, and the gradient of sum(output * cotangent) for each operand."""
    leaves = [operand.detach().requires_grad_() for operand in operands]
    output = op(*leaves)
    cotangent = randn(*output.shape, seed=1) if cotangent is None else cotangent
    return [output.detach(), *torch.autograd.grad(output, leaves, cotangent.to(output.dtype))]


PRODUCTS: dict[str, tuple[Callable[..., Tensor], list[Tensor]]] = {
    "mm": (torch.mm, [randn(7, 33), randn(33, 5)]),
    "mm transposed": (torch.mm, [randn(33, 7).t(), randn(5, 33).t()]),
    "mm strided": (torch.mm, [strided(7, 33), strided(33, 5)]),
    "mm broadcast": (torch.mm, [randn(1, 33).expand(7, 33), randn(33, 5)]),
    "mm empty": (torch.mm, [randn(0, 4), randn(4, 3)]),
    "mm empty sum": (torch.mm, [randn(2, 0), randn(0, 3)]),
    "addmm": (torch.addmm, [randn(5), randn(7, 33), randn(33, 5)]),
    "addmm scaled": (
        lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2),
        [randn(7, 5), randn(7, 33), randn(33, 5)],
    ),
    "linear": (F.linear, [randn(2, 3, 16), randn(4, 16), randn(4)]),
    "bmm": (torch.bmm, [randn(3, 7, 33), randn(3, 5, 33).mT]),
    "bmm empty": (torch.bmm, [randn(0, 2, 3), randn(0, 3, 2)]),
    "baddbmm": (lambda c, a, b: torch.baddbmm(c, a, b, alpha=0.5), [randn(3, 7, 5), randn(3, 7, 33), randn(3, 33, 5)]),
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, padding=2), [randn(2, 3, 11), randn(4, 3, 5), randn(4)]),
    "conv2d": (F.conv2d, [randn(2, 3, 9, 8), randn(4, 3, 3, 3)]),
    "conv2d strided": (
        lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1, dilation=2),
        [randn(2, 3, 9, 8), randn(4, 3, 3, 3), randn(4)],
    ),
    "conv2d grouped": (
        lambda x, w, b: F.conv2d(x, w, b, groups=2, padding="same"),
        [randn(2, 4, 9, 8), randn(6, 2, 3, 3), randn(6)],
    ),
    "conv2d depthwise": (lambda x, w: F.conv2d(x, w, groups=4), [randn(2, 4, 9, 8), randn(4, 1, 3, 3)]),
    "conv2d channels last": (
        F.conv2d,
        [randn(2, 3, 9, 8).to(memory_format=torch.channels_last), randn(4, 3, 3, 3)],
    ),
    "conv2d empty batch": (F.conv2d, [randn(0, 3, 9, 8), randn(4, 3, 3, 3)]),
    "conv_transpose2d": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, output_padding=1),
        [randn(2, 3, 5, 4), randn(3, 4, 3, 3), randn(4)],
    ),
    "conv3d": (lambda x, w: F.conv3d(x, w, padding=1), [randn(1, 2, 4, 5, 6), randn(3, 2, 3, 3, 3)]),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_product_is_the_fp32_one_rounded_once(name: str) -> None:
    op, operands = PRODUCTS[name]
    with context("fast"):
        actual = gradients(op, operands)
    in_fp32 = gradients(op, [operand.float() for operand in operands])
    exact = gradients(op, [operand.double() for operand in operands])
    magnitude = gradients(op, [operand.double().abs() for operand in operands], randn(*exact[0].shape, seed=1).abs())
    for result, reference, true, size in zip(actual, in_fp32, exact, magnitude, strict=True):
        assert result.dtype is HALF and result.stride() == reference.stride()
        assert torch.equal(result, reference.half())
        # one rounding to fp16, and fp32 sums of a few hundred terms
        assert ((result.double() - true).abs() <= ULP * true.abs() + TINY + 300 * 2.0**-24 * size).all()


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ([65504.0, 15.0], 65504.0),  # below the midpoint of 65504 and 65536
        ([65504.0, 16.0], math.inf),
        ([-65504.0, -16.0], -math.inf),
        ([65504.0] * 8 + [-65504.0] * 7, 65504.0),  # the sum passes 65504 on its way: the accumulator is fp32
        ([math.inf, -math.inf], math.nan),
        ([math.inf, 1.0], math.inf),
        ([math.nan, 1.0], math.nan),
        ([2.0**-14, 2.0**-24], 2.0**-14 + 2.0**-24),
    ],
)
def test_overflow_is_that_of_fp16(terms: list[float], expected: float) -> None:
    row = torch.tensor([terms], dtype=HALF)
    column = torch.ones(len(terms), 1, dtype=HALF)
    bias = torch.zeros(1, dtype=HALF)
    image, kernel = row.reshape(1, -1, 1, 1), column.reshape(1, -1, 1, 1)
    with context("fast"):
        results = [
            row @ column,
            torch.addmm(bias, row, column),
            torch.bmm(row[None], column[None]),
            torch.baddbmm(bias, row[None], column[None]),
            F.conv2d(image, kernel),
        ]
    for result in results:
        torch.testing.assert_close(result.item(), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        ((2.0**-12, 2.0**-12), 2.0**-24),  # the smallest subnormal
        ((2.0**-12, 2.0**-13), 0.0),  # half of it: ties to even
        ((2.0**-12, 1.5 * 2.0**-13), 2.0**-24),
        ((2.0**-12, 2.5 * 2.0**-12), 2.0**-23),
        ((-(2.0**-20), 2.0**-20), -0.0),
        ((2.0**8, 2.0**8), math.inf),
    ],
)
def test_gradients_underflow_and_overflow_as_fp16(factors: tuple[float, float], expected: float) -> None:
    x = torch.ones(1, 1, dtype=HALF, requires_grad=True)
    weight = torch.full((1, 1), factors[0], dtype=HALF)
    cotangent = torch.full((1, 1), factors[1], dtype=HALF)
    with context("fast"):
        (x @ weight).backward(cotangent)
        (conv_grad,) = torch.autograd.grad(
            F.conv2d(x[None, None], weight[None, None]), x, cotangent[None, None], allow_unused=False
        )
    assert x.grad is not None
    assert x.grad.item() == expected and conv_grad.item() == expected
    assert math.copysign(1, x.grad.item()) == math.copysign(1, expected)


@pytest.mark.parametrize("name", ["mm", "addmm", "bmm", "baddbmm", "conv2d", "linear", "attention"])
def test_both_passes_run_in_fp32_inside_and_in_fp16_outside(name: str) -> None:
    op, operands = PRODUCTS.get(name, (F.scaled_dot_product_attention, [randn(2, 2, 8, 4)] * 3))
    products = [aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten.convolution, aten.convolution_backward]
    products += [
        aten._scaled_dot_product_flash_attention_for_cpu,
        aten._scaled_dot_product_flash_attention_for_cpu_backward,
    ]

    def dtypes(mode: Any) -> dict[Any, set[torch.dtype]]:
        with Spy() as spy, mode:
            gradients(op, operands)
        return {
            product: {dtype for func, dtype in spy.seen if func is product.default}
            for product in products
            if any(func is product.default for func, _ in spy.seen)
        }

    outside = dtypes(context("native"))
    assert outside and all(HALF in seen for seen in outside.values())
    inside = dtypes(context("fast"))
    assert inside == {product: {torch.float32} for product in outside}
    assert dtypes(nullcontext()) == outside


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_other_dtypes_pass_untouched(dtype: torch.dtype) -> None:
    for op, operands in (PRODUCTS["mm"], PRODUCTS["conv2d strided"]):
        cast = [operand.to(dtype) for operand in operands]
        expected = gradients(op, cast)
        with Spy() as spy, FastGemm():
            actual = gradients(op, cast)
        assert {seen for func, seen in spy.seen if func in (aten.mm.default, aten.convolution.default)} == {dtype}
        assert all(map(torch.equal, actual, expected))


def test_mixed_dtypes_are_refused_as_outside() -> None:
    with context("fast"), pytest.raises(RuntimeError, match="dtype"):
        torch.mm(randn(2, 2), randn(2, 2).float())


@pytest.mark.parametrize("masking", ["causal", "none", "bool", "float"])
def test_attention_is_exact_up_to_rounding(masking: str) -> None:
    shape = (2, 3, 16, 8)  # (B, H, T, D)
    operands = [randn(*shape, seed=seed) for seed in range(3)]
    lower = torch.ones(16, 16, dtype=torch.bool).tril()
    bias = torch.zeros(16, 16, dtype=HALF).masked_fill(~lower, -math.inf)
    mask = {"bool": lower, "float": bias}.get(masking)

    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        allowed = mask if mask is None or mask.dtype is torch.bool else mask.to(query.dtype)
        return F.scaled_dot_product_attention(query, key, value, allowed, is_causal=masking == "causal")

    def textbook(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.mT / math.sqrt(shape[-1])
        return (scores if masking == "none" else scores.masked_fill(~lower, -math.inf)).softmax(-1) @ value

    with context("fast"):
        actual = gradients(attention, operands)
    assert torch.equal(actual[0], attention(*[operand.float() for operand in operands]).half())
    exact = gradients(textbook, [operand.double() for operand in operands])
    for result, true in zip(actual, exact, strict=True):
        torch.testing.assert_close(result.double(), true, rtol=2 * ULP, atol=2 * ULP)


def test_the_log_sum_exp_of_attention_is_not_rounded() -> None:
    operands = [randn(1, 2, 16, 8, seed=seed) for seed in range(3)]
    flash = aten._scaled_dot_product_flash_attention_for_cpu.default
    with FastGemm():
        actual = flash(*operands)[1]
    assert torch.equal(actual, flash(*[operand.float() for operand in operands])[1])


def autocast_gradients(model: nn.Module, inputs: Tensor, autocast: bool = True) -> list[Tensor]:
    model.zero_grad()
    inputs = inputs.clone().requires_grad_()
    with torch.autocast("cpu", dtype=HALF, enabled=autocast):
        output = model(inputs)
        output = output[0] if isinstance(output, tuple) else output
    (output.float() * randn(*output.shape)).mean().backward()
    assert inputs.grad is not None
    grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert len(grads) == len(list(model.parameters()))
    return [output.detach().float(), inputs.grad, *(grad.clone() for grad in grads)]


def assert_close_to_fp32(actual: list[Tensor], expected: list[Tensor], rtol: float = 0.02) -> None:
    for result, reference in zip(actual, expected, strict=True):
        assert result.isfinite().all()
        assert (result - reference).norm() <= rtol * reference.norm() + 1e-7


@pytest.mark.parametrize("cpu_gemm", ["fast", "native"])
@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.LSTM(6, 8),
        lambda: nn.LSTM(6, 8, num_layers=2, bidirectional=True, batch_first=True),
        lambda: nn.LSTM(6, 8, bias=False),
        lambda: nn.GRU(6, 8, num_layers=2),
        lambda: nn.RNN(6, 8, bidirectional=True),
    ],
    ids=["lstm", "lstm deep", "lstm no bias", "gru", "rnn"],
)
def test_recurrent_layers_run_and_stay_close_to_fp32(build: Callable[[], nn.Module], cpu_gemm: str) -> None:
    torch.manual_seed(0)
    model, inputs = build(), torch.randn(7, 5, 6)
    expected = autocast_gradients(model, inputs, autocast=False)
    with context(cpu_gemm):
        actual = autocast_gradients(model, inputs)
    assert_close_to_fp32(actual, expected)


def test_an_lstm_returns_rounded_values() -> None:
    """Rounded operands, the layer in fp32, rounded results: the same as casting by hand."""
    torch.manual_seed(0)
    lstm, inputs = nn.LSTM(6, 8), torch.randn(7, 5, 6)
    with context("fast"):
        output, weight_grad = (autocast_gradients(lstm, inputs)[index] for index in (0, 2))
    for parameter in lstm.parameters():
        parameter.data = parameter.data.half().float()
    expected = autocast_gradients(lstm, inputs.half().float(), autocast=False)
    assert torch.equal(output, expected[0].half().float())
    torch.testing.assert_close(weight_grad, weight_grad.half().float(), rtol=0, atol=0)
    assert_close_to_fp32([weight_grad], [expected[2]], rtol=4 * ULP)


class Block(nn.Module):
    """A pre-norm transformer block, (B, T, D) to (B, T, D)."""

    def __init__(self, width: int = 16, recompute: bool = False) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))
        self.recompute = recompute

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.block, x, use_reentrant=False) if self.recompute else self.block(x)

    def block(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1)
        )
        x = x + F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(-2)
        return x + self.mlp(x)


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (Block, (2, 9, 16)),
        (lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), (2, 9, 16)),
        (
            lambda: nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)),
            (4, 3, 6, 6),
        ),
    ],
    ids=["block", "encoder layer", "convolutional"],
)
def test_models_stay_close_to_fp32(build: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model, inputs = build(), torch.randn(*shape)
    expected = autocast_gradients(model, inputs, autocast=False)
    with context("fast"):
        actual = autocast_gradients(model, inputs)
    assert_close_to_fp32(actual, expected)


def test_resnet18_learns_under_a_gradient_scaler() -> None:
    torch.manual_seed(0)
    from torchvision.models import resnet18

    model = resnet18(num_classes=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    images, labels = torch.randn(4, 3, 32, 32), torch.arange(4)
    losses = []
    for _ in range(4):
        with context("fast"):
            with torch.autocast("cpu", dtype=HALF):
                loss = F.cross_entropy(model(images), labels)
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert scaler.get_scale() == 2.0**10 and losses[-1] < losses[0]


def test_an_overflow_in_the_backward_pass_is_skipped_by_the_gradient_scaler() -> None:
    weight = nn.Parameter(torch.full((2, 2), 0.02))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    with context("fast"):
        with torch.autocast("cpu", dtype=HALF):
            loss = (torch.full((512, 2), 300.0) @ weight).float().sum()
        scaler.scale(loss).backward()  # 512 * 300 * 2 > 65504
    scaler.step(optimizer)
    scaler.update()
    assert loss.isfinite() and scaler.get_scale() == 1.0 and (weight == 0.02).all()


def test_activation_checkpointing_gives_the_same_gradients() -> None:
    torch.manual_seed(0)
    model, inputs = Block(), torch.randn(2, 9, 16)
    with Spy() as spy, context("fast"):
        expected = autocast_gradients(model, inputs)
        spy.seen.clear()
        model.recompute = True
        actual = autocast_gradients(model, inputs)
    assert all(map(torch.equal, actual, expected))
    assert {dtype for func, dtype in spy.seen if func in (aten.addmm.default, aten.mm.default)} == {torch.float32}


def test_inference_mode_is_intercepted_too() -> None:
    torch.manual_seed(0)
    model, inputs = nn.Sequential(nn.Conv1d(3, 4, 3), nn.Linear(5, 6)), torch.randn(2, 3, 7)
    with Spy() as spy, context("fast"), torch.autocast("cpu", dtype=HALF):
        with torch.no_grad():
            expected = model(inputs)
        spy.seen.clear()
        with torch.inference_mode():
            actual = model(inputs)
    assert torch.equal(actual, expected)
    assert {(aten.addmm.default, torch.float32), (aten.convolution.default, torch.float32)} <= spy.seen
    assert not {(aten.addmm.default, HALF), (aten.linear.default, HALF)} & spy.seen


@pytest.mark.parametrize("cpu_gemm", ["fast", "native"])
@pytest.mark.parametrize("enabled", [True, False])
def test_leaving_restores_everything(cpu_gemm: str, enabled: bool) -> None:
    onednn: Any = torch.backends.mkldnn
    before, onednn.enabled = onednn.enabled, enabled
    try:
        with pytest.raises(KeyError), context(cpu_gemm):
            assert (torch._C._len_torch_dispatch_stack() == 1) == (cpu_gemm == "fast")
            raise KeyError
        assert torch._C._len_torch_dispatch_stack() == 0 and onednn.enabled == enabled
    finally:
        onednn.enabled = before


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="slow"), context("slow"):
        pass
