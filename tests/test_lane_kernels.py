"""Operations of many lanes at once, against PyTorch's own modules, lane by lane."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from gradlab.fp16_cpu import context, without_onednn
from gradlab.recorder import late_to_early
from gradlab.sweep import kernels
from gradlab.sweep.kernels import SHORT, Taps, lane_rules, recurrent_rule
from gradlab.sweep.recurrent import lstm
from gradlab.sweep.update import lane_norms

LANES, BATCH, STEPS, FEATURES, WIDTH = 3, 4, 7, 5, 6
HALVES = {torch.float16: context("fast"), torch.bfloat16: without_onednn(torch.bfloat16)}


def flat(value: Any) -> list[Tensor]:
    """The tensors in a nested output."""
    return [value] if isinstance(value, Tensor) else [t for part in value for t in flat(part)]


@contextmanager
def rounding(dtype: torch.dtype | None) -> Iterator[None]:
    """A run's forward and backward pass in a precision."""
    if dtype is None:
        yield
        return
    with context("fast") if dtype == torch.float16 else without_onednn(dtype):
        yield


def autocast(dtype: torch.dtype | None) -> Any:
    return nullcontext() if dtype is None else torch.autocast("cpu", dtype)


def passed(
    call: Any, weights: dict[str, Tensor], inputs: list[Tensor], dtype: torch.dtype | None
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Outputs of a forward pass, and the gradients of weights and inputs for the same random one of the outputs."""
    weights = {k: v.detach().clone().requires_grad_() for k, v in weights.items()}
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    with rounding(dtype):
        with autocast(dtype):
            outputs = flat(call(weights, inputs))
        shown = [out.float() if dtype else out for out in outputs]
        sum((out * out.detach().cos()).sum() for out in shown).backward()  # type: ignore[union-attr]
    every = {**weights, **{f"input {i}": x for i, x in enumerate(inputs)}}
    return shown, {k: torch.zeros_like(v) if v.grad is None else v.grad for k, v in every.items()}


def compare(
    modules: list[nn.Module], inputs: list[Tensor], dtype: torch.dtype | None = None, taps: Taps | None = None
) -> tuple[float, float]:
    """Largest distance of outputs and of gradients of lanes from those of each module alone, relative to their norm.

    inputs: (LANES, ...) each.
    """
    stacked = {k: torch.stack([m.state_dict()[k] for m in modules]) for k in modules[0].state_dict()}

    def lanes(weights: dict[str, Tensor], given: list[Tensor]) -> Any:
        def one(own: dict[str, Tensor], *x: Tensor) -> tuple[Tensor, ...]:
            return tuple(flat(functional_call(modules[0], own, x)))

        with lane_rules(taps):
            return vmap(one, randomness="error")(weights, *given)

    outputs, gradients = passed(lanes, stacked, inputs, dtype)
    apart = [0.0, 0.0]
    for lane, module in enumerate(modules):
        own = {k: v[lane] for k, v in stacked.items()}
        wanted, slopes = passed(
            lambda w, x, m=module: functional_call(m, w, tuple(x)), own, [x[lane] for x in inputs], dtype
        )
        pairs = [(a[lane], b) for a, b in zip(outputs, wanted, strict=True)]
        for i, both in enumerate((pairs, [(gradients[k][lane], slopes[k]) for k in slopes])):
            for a, b in both:
                assert a.shape == b.shape and torch.isfinite(b).all()
                apart[i] = max(apart[i], ((a - b).norm() / b.norm().clamp(min=1e-12)).item())
    return apart[0], apart[1]


CELLS: dict[str, Any] = {
    "tanh": nn.RNN,
    "relu": lambda *a, **k: nn.RNN(*a, nonlinearity="relu", **k),
    "gru": nn.GRU,
    "lstm": nn.LSTM,
    "lstm step by step": nn.LSTM,  # as on a CUDA device
}


class Begun(nn.Module):
    """A recurrent module that is given its first state."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, *first: Tensor) -> Any:
        return self.inner(x, first if len(first) > 1 else first[0]) if first else self.inner(x)


def recurrent(cell: str, dtype: torch.dtype, *sizes: Any, **options: Any) -> list[nn.Module]:
    return [Begun(CELLS[cell](*sizes, **options).to(dtype)) for _ in range(LANES)]


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch, cell: str) -> None:
    """An LSTM's own rule for CUDA devices, where it is wanted."""
    if cell == "lstm step by step":
        monkeypatch.setitem(kernels.RULES, kernels._VF.lstm, recurrent_rule(lstm))


@pytest.mark.parametrize("begun", [False, True], ids=["", "begun"])
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch_first", "time_first"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("cell", CELLS)
def test_recurrent_lanes_are_the_module_alone(
    rules: None, cell: str, layers: int, bias: bool, batch_first: bool, begun: bool
) -> None:
    torch.manual_seed(0)
    modules = recurrent(cell, torch.float64, FEATURES, WIDTH, layers, bias=bias, batch_first=batch_first)
    shape = (BATCH, STEPS) if batch_first else (STEPS, BATCH)
    inputs = [torch.randn(LANES, *shape, FEATURES, dtype=torch.float64)]
    if begun:
        states = 2 if cell.startswith("lstm") else 1
        inputs += [torch.randn(LANES, layers, BATCH, WIDTH, dtype=torch.float64) for _ in range(states)]
    outputs, gradients = compare(modules, inputs)
    assert outputs < 1e-14 and gradients < 1e-13


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("cell", CELLS)
def test_recurrent_lanes_under_autocast(rules: None, cell: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    modules = recurrent(cell, torch.float32, FEATURES, WIDTH, 2, batch_first=True)
    outputs, gradients = compare(modules, [torch.randn(LANES, BATCH, STEPS, FEATURES)], dtype)
    eps = torch.finfo(dtype).eps  # fused kernels and lanes round at the end, other modules at every step
    assert outputs < 2 * eps and gradients < 2 * eps


@pytest.mark.parametrize("batch_first", [True, False], ids=["batch_first", "time_first"])
@pytest.mark.parametrize("cell", CELLS)
def test_taps_give_the_gradient_of_each_time_step(rules: None, cell: str, batch_first: bool) -> None:
    torch.manual_seed(0)
    modules = recurrent(cell, torch.float32, FEATURES, WIDTH, 2, batch_first=batch_first)
    x = torch.randn(LANES, *((BATCH, STEPS) if batch_first else (STEPS, BATCH)), FEATURES)
    taps: Taps = {}
    compare(modules, [x], taps=taps)
    (norms,) = taps.values()
    for lane, module in enumerate(modules):
        own = x[lane].clone().requires_grad_()
        out = flat(module(own))
        sum((o * o.detach().cos()).sum() for o in out).backward()  # type: ignore[union-attr]
        assert own.grad is not None
        wanted = own.grad.double().norm(dim=(0, 2) if batch_first else (1, 2))
        assert torch.allclose(norms[lane], wanted, rtol=1e-5)
        assert late_to_early(norms[lane]).item() == pytest.approx((wanted[-1] / wanted[0]).item(), rel=1e-5)


def test_a_module_that_runs_both_ways_is_refused_and_not_run_one_way() -> None:
    both_ways = recurrent("tanh", torch.float64, FEATURES, WIDTH, batch_first=True, bidirectional=True)
    with pytest.raises(RuntimeError, match="rnn_tanh"):
        compare(both_ways, [torch.randn(LANES, BATCH, STEPS, FEATURES, dtype=torch.float64)])


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize("shape", [(), (BATCH,), (BATCH, STEPS), (BATCH, 2, 3), (0,)], ids=str)
def test_linear_of_lanes(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    modules: list[nn.Module] = [nn.Linear(FEATURES, WIDTH, bias=bias).double() for _ in range(LANES)]
    assert max(compare(modules, [torch.randn(LANES, *shape, FEATURES, dtype=torch.float64)])) < 1e-14


def test_linear_by_one_row_of_weights() -> None:
    class Row(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.row = nn.Parameter(torch.randn(FEATURES, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.row)

    assert (
        max(compare([Row() for _ in range(LANES)], [torch.randn(LANES, BATCH, FEATURES, dtype=torch.float64)])) < 1e-14
    )


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_linear_of_lanes_under_autocast(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    modules: list[nn.Module] = [nn.Linear(FEATURES, WIDTH) for _ in range(LANES)]
    eps = torch.finfo(dtype).eps
    assert max(compare(modules, [torch.randn(LANES, BATCH, STEPS, FEATURES)], dtype)) < eps
    huge = torch.full((LANES, FEATURES), 6e4)  # products over 65504 are infinite in fp16, and only there
    with rounding(dtype), autocast(dtype), lane_rules():
        weights = torch.full((LANES, WIDTH, FEATURES), 1.0)
        out = vmap(F.linear)(huge, weights)
    assert out.dtype == dtype and bool(out.isinf().all()) == (dtype == torch.float16)


@pytest.mark.parametrize("which", ["inputs", "weights"])
def test_linear_where_lanes_share_one_side(which: str) -> None:
    torch.manual_seed(0)
    x, w, b = torch.randn(LANES, BATCH, FEATURES), torch.randn(LANES, WIDTH, FEATURES), torch.randn(LANES, WIDTH)
    dims = (None, 0, 0) if which == "inputs" else (0, None, None)
    given = tuple(t if d == 0 else t[0] for t, d in zip((x, w, b), dims, strict=True))
    with lane_rules():
        out = vmap(F.linear, in_dims=dims)(*given)
    for lane in range(LANES):
        own = [t if d is None else t[lane] for t, d in zip(given, dims, strict=True)]
        assert torch.allclose(out[lane], F.linear(*own), atol=1e-6)


def test_what_is_the_same_for_all_lanes_is_left_to_pytorch() -> None:
    x, w = torch.randn(BATCH, FEATURES), torch.randn(WIDTH, FEATURES)
    with lane_rules():
        out = vmap(lambda a: F.linear(x, w) * a)(torch.arange(LANES))
    for lane in range(LANES):
        assert torch.equal(out[lane], F.linear(x, w) * lane)


@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize(("queries", "keys"), [(7, 7), (7, 9), (9, 7), (1, 1), (SHORT + 1, SHORT + 1)])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_attention_of_lanes(causal: bool, queries: int, keys: int, scale: float | None) -> None:
    torch.manual_seed(0)

    class Attention(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)

    shapes = [(LANES, 2, 2, n, 8) for n in (queries, keys, keys)]
    outputs, gradients = compare([Attention()] * LANES, [torch.randn(shape) for shape in shapes])
    assert outputs < 1e-6 and gradients < 1e-5


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_attention_of_lanes_under_autocast(dtype: torch.dtype) -> None:
    torch.manual_seed(0)

    class Attention(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    eps = torch.finfo(dtype).eps
    assert max(compare([Attention()] * LANES, [torch.randn(LANES, 2, 2, 9, 8)] * 3, dtype)) < 2 * eps


def test_attention_that_the_rule_is_not_for_is_left_to_pytorch() -> None:
    torch.manual_seed(0)
    mask = torch.rand(7, 7) > 0.3
    mask.fill_diagonal_(True)

    class Masked(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    assert max(compare([Masked()] * LANES, [torch.randn(LANES, 2, 2, 7, 8)] * 3)) < 1e-5


@pytest.mark.parametrize("value", [1.0, 1e30, 1e-30, 3e38, 1e-45, 0.0, torch.inf, torch.nan])
def test_norms_of_lanes_are_right_at_the_extremes(value: float) -> None:
    """One lane's element is extreme, in one tensor; every norm is that of the same tensor alone in float64."""
    torch.manual_seed(0)
    views = [torch.randn(LANES, 4, 5), torch.randn(LANES, 3), torch.randn(LANES), torch.zeros(LANES, 0, 2)]
    for view in views[:3]:
        view[1] = value
    norms = lane_norms(views)
    assert norms.shape == (LANES, 4) and norms.dtype == torch.float64
    for lane in range(LANES):
        for i, view in enumerate(views):
            wanted = view[lane].double().square().sum().sqrt().item()
            assert norms[lane, i].item() == pytest.approx(wanted, rel=1e-6, nan_ok=True)
