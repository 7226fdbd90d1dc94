"""Operations of many lanes at once, against PyTorch's own modules, lane by lane."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from gradlab.measure.record import time_ratio
from gradlab.sweep.vectorized import lane_rules as lane_rules_module
from gradlab.sweep.vectorized.lane_gradients import lane_norms
from gradlab.sweep.vectorized.lane_rules import SHORT, LaneRules
from gradlab.sweep.vectorized.recurrent import lstm
from gradlab.sweep.vectorized.recurrent_rule import Taps, recurrent_rule
from gradlab.update.fp16_cpu import _lstm_runs, context, without_onednn

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
    return outputs, {k: torch.zeros_like(v) if v.grad is None else v.grad for k, v in every.items()}


def compare(
    modules: list[nn.Module], inputs: list[Tensor], dtype: torch.dtype | None = None, taps: Taps | None = None
) -> tuple[float, float]:
    """Largest distance of outputs and of gradients of lanes from those of each module alone, relative to their norm.

    A norm below 0.1 counts as 0.1: a gradient that is zero by its definition is rounding alone.

    inputs: (LANES, ...) each.
    """
    stacked = {
        k: torch.stack([dict(m.named_parameters())[k] for m in modules]) for k, _ in modules[0].named_parameters()
    }

    def lanes(weights: dict[str, Tensor], given: list[Tensor]) -> Any:
        def one(own: dict[str, Tensor], *x: Tensor) -> tuple[Tensor, ...]:
            return tuple(flat(functional_call(modules[0], own, x)))

        with LaneRules(taps):
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
                assert a.shape == b.shape and a.dtype == b.dtype and torch.isfinite(torch.stack([a, b])).all()
                a, b = a.double(), b.double()
                apart[i] = max(apart[i], ((a - b).norm() / b.norm().clamp(min=0.1)).item())
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
        monkeypatch.setitem(lane_rules_module.RULES, lane_rules_module._VF.lstm, recurrent_rule(lstm))


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
    if cell == "lstm step by step" and dtype is torch.bfloat16 and not _lstm_runs(dtype):
        pytest.skip("PyTorch's own LSTM returns fp32 on this CPU; the rule returns bf16, as the fused kernels do")
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
    taps = Taps()
    compare(modules, [x], taps=taps)
    (norms,) = taps.values()
    for lane, module in enumerate(modules):
        own = x[lane].clone().requires_grad_()
        out = flat(module(own))
        sum((o * o.detach().cos()).sum() for o in out).backward()  # type: ignore[union-attr]
        assert own.grad is not None
        wanted = own.grad.double().norm(dim=(0, 2) if batch_first else (1, 2))
        assert torch.allclose(norms[lane], wanted, rtol=1e-5)
        assert time_ratio(norms[lane]).item() == pytest.approx((wanted[-1] / wanted[0]).item(), rel=1e-5)


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
    with rounding(dtype), autocast(dtype), LaneRules():
        weights = torch.full((LANES, WIDTH, FEATURES), 1.0)
        out = vmap(F.linear)(huge, weights)
    assert out.dtype == dtype and bool(out.isinf().all()) == (dtype == torch.float16)


@pytest.mark.parametrize("which", ["inputs", "weights"])
def test_linear_where_lanes_share_one_side(which: str) -> None:
    torch.manual_seed(0)
    x, w, b = torch.randn(LANES, BATCH, FEATURES), torch.randn(LANES, WIDTH, FEATURES), torch.randn(LANES, WIDTH)
    dims = (None, 0, 0) if which == "inputs" else (0, None, None)
    given = tuple(t if d == 0 else t[0] for t, d in zip((x, w, b), dims, strict=True))
    with LaneRules():
        out = vmap(F.linear, in_dims=dims)(*given)
    for lane in range(LANES):
        own = [t if d is None else t[lane] for t, d in zip(given, dims, strict=True)]
        assert torch.allclose(out[lane], F.linear(*own), atol=1e-6)


def test_what_is_the_same_for_all_lanes_is_left_to_pytorch() -> None:
    x, w = torch.randn(BATCH, FEATURES), torch.randn(WIDTH, FEATURES)
    with LaneRules():
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


LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "conv1d": (lambda: nn.Conv1d(3, 4, 3, bias=False), (2, 3, 9)),
    "conv2d": (lambda: nn.Conv2d(3, 4, 3, padding=1, bias=False), (2, 3, 6, 6)),
    "conv2d, stride, bias": (lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1), (2, 3, 6, 6)),
    "conv_transpose2d": (lambda: nn.ConvTranspose2d(3, 4, 3), (2, 3, 6, 6)),
    "batch_norm 1d": (lambda: nn.BatchNorm1d(5), (8, 5)),
    "batch_norm 2d": (lambda: nn.BatchNorm2d(5), (4, 5, 3, 3)),
    "batch_norm, no weights": (lambda: nn.BatchNorm1d(5, affine=False), (8, 5)),
    "group_norm": (lambda: nn.GroupNorm(2, 4), (4, 4, 3, 3)),
    "group_norm of vectors": (lambda: nn.GroupNorm(2, 4), (4, 4)),
    "layer_norm": (lambda: nn.LayerNorm(5), (4, 5)),
    "layer_norm of two dimensions": (lambda: nn.LayerNorm((3, 5)), (4, 2, 3, 5)),
    "layer_norm, no bias": (lambda: nn.LayerNorm(5, bias=False), (4, 5)),
    "layer_norm, no weights": (lambda: nn.LayerNorm(5, elementwise_affine=False), (4, 5)),
    "prelu": (lambda: nn.PReLU(), (4, 5)),
    "embedding": (lambda: Table(), (4, 5)),
}


class Table(nn.Module):
    """Rows that the signs of its inputs choose."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.rows((x > 0).long()) * x.unsqueeze(-1)


def spread(module: nn.Module) -> nn.Module:
    """With weights that are no ones or zeros."""
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return module


@pytest.mark.parametrize("dtype", [None, *HALVES], ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_lanes_round_as_the_layer_alone(name: str, dtype: torch.dtype | None) -> None:
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    modules = [spread(make()) for _ in range(LANES)]

    class Low(nn.Module):  # its inputs come from another layer, and are halves already
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x if dtype is None else x.to(dtype))

    outputs, gradients = compare([Low(m) for m in modules], [torch.randn(LANES, *shape)], dtype)
    eps = torch.finfo(dtype or torch.float32).eps
    assert outputs < 4 * eps and gradients < 8 * eps


def test_statistics_of_batch_norm_are_kept_lane_by_lane() -> None:
    torch.manual_seed(0)
    modules = [nn.BatchNorm2d(5) for _ in range(LANES)]
    buffers = {k: torch.stack([b.clone() for _ in modules]) for k, b in modules[0].named_buffers()}
    for _ in range(3):
        x = torch.randn(LANES, 4, 5, 3, 3) * torch.arange(1.0, LANES + 1).reshape(-1, 1, 1, 1, 1)
        with LaneRules():
            vmap(lambda b, x: functional_call(modules[0], b, (x,)))(buffers, x)
        for lane, module in enumerate(modules):
            functional_call(module, {}, (x[lane],))
    for lane, module in enumerate(modules):
        for k, wanted in module.named_buffers():
            assert torch.allclose(buffers[k][lane].double(), wanted.double(), rtol=1e-5), k
    buffers["running_var"][1] = 100.0  # in evaluation they are read, and not written
    modules[0].eval()
    x, before = torch.randn(4, 5, 3, 3), {k: v.clone() for k, v in buffers.items()}
    with LaneRules():
        out = vmap(lambda b: functional_call(modules[0], b, (x,)))(buffers)
    for lane in range(LANES):
        alone = functional_call(modules[0], {k: v[lane] for k, v in before.items()}, (x,))
        assert torch.allclose(out[lane], alone, atol=1e-6)
    assert all(torch.equal(v, before[k]) for k, v in buffers.items())


FUNCTIONS: dict[str, tuple[Any, list[tuple[int, ...]]]] = {
    "baddbmm": (torch.baddbmm, [(2, 3, 5), (2, 3, 4), (2, 4, 5)]),
    "addmm": (torch.addmm, [(3, 5), (3, 4), (4, 5)]),
    "Tensor.addmm": (lambda a, b, c: a.addmm(b, c), [(3, 5), (3, 4), (4, 5)]),
    "addbmm": (torch.addbmm, [(3, 5), (2, 3, 4), (2, 4, 5)]),
    "matmul": (lambda a, b: a @ b, [(2, 3, 4), (4, 5)]),
    "einsum": (lambda a, b: torch.einsum("ij,jk->ik", a, b), [(3, 4), (4, 5)]),
    "vecdot": (torch.linalg.vecdot, [(3, 4), (3, 4)]),
    "bilinear": (F.bilinear, [(3, 4), (3, 5), (6, 4, 5)]),
    "conv3d": (F.conv3d, [(2, 3, 4, 4, 4), (4, 3, 3, 3, 3)]),
    "keyword": (lambda x, w: F.conv1d(input=x, weight=w), [(2, 3, 5), (4, 3, 3)]),
}
ON_HALVES: dict[str, Any] = {
    "cross_entropy": lambda a: F.cross_entropy(a, torch.zeros(3, dtype=torch.long)),
    "nll_loss": lambda a: F.nll_loss(a, torch.zeros(3, dtype=torch.long)),
    "mse_loss": lambda a: F.mse_loss(a, a * 2),
    "l1_loss": lambda a: F.l1_loss(a, a * 2),
    "huber_loss": lambda a: F.huber_loss(a, a * 2),
    "bce": lambda a: F.binary_cross_entropy_with_logits(a, a),
    "kl_div": lambda a: F.kl_div(a, a, reduction="sum"),
    "poisson": lambda a: F.poisson_nll_loss(a, a),
    "hinge": lambda a: F.hinge_embedding_loss(a, a.sign()),
    "cosine": lambda a: F.cosine_embedding_loss(a, a * 2, a[:, 0].sign()),
    "softmax": lambda a: a.softmax(-1),
    "log_softmax": lambda a: F.log_softmax(a, -1),
    "layer_norm": lambda a: F.layer_norm(a, (4,)),
    "exp": lambda a: a.exp(),
    "sum": lambda a: a.sum(),
    "norm": lambda a: a.norm(),
    "pow": lambda a: a**2,
}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", [*FUNCTIONS, *ON_HALVES])
def test_autocast_chooses_the_precision_that_it_chooses_alone(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    function, shapes = FUNCTIONS[name] if name in FUNCTIONS else (ON_HALVES[name], [(3, 4)])
    tensors = [torch.rand(LANES, *shape) for shape in shapes]
    tensors = tensors if name in FUNCTIONS else [t.to(dtype) for t in tensors]
    with rounding(dtype), autocast(dtype):
        with LaneRules():
            out = vmap(function)(*tensors)
        for lane in range(LANES):
            alone = function(*(t[lane] for t in tensors))
            assert out.dtype == alone.dtype
            assert torch.allclose(out[lane].float(), alone.float(), rtol=4 * torch.finfo(dtype).eps)


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
            assert norms[lane, i].item() == pytest.approx(wanted, rel=1e-6, abs=0, nan_ok=True)
