"""One update against a hand-written PyTorch loop, and the invariants that hold for every one of them."""

import copy
import math
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from helpers import weights
from hypothesis import given, settings
from hypothesis import strategies as st

from gradlab.base.distributed import World
from gradlab.data.order import epoch_order, window
from gradlab.update.adam import Adam, AdamW
from gradlab.update.clip import AdaptiveClip, AutoClip, Clip, NoClip, NormClip, PerLayerClip, ValueClip, ZClip
from gradlab.update.gradients import measure
from gradlab.update.loss import CrossEntropy
from gradlab.update.noise import GaussianNoise, NoNoise
from gradlab.update.optimizer import OptimizerOption
from gradlab.update.precision import BF16, FP16, FP32, PrecisionOption
from gradlab.update.schedule import Constant, Schedule, Warmup
from gradlab.update.sgd import SGD
from gradlab.update.stats import MicroBatch
from gradlab.update.step import Update

CPU = torch.device("cpu")


def net(batch_norm: bool = False) -> torch.nn.Module:
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm1d(16) if batch_norm else torch.nn.Identity()
    return torch.nn.Sequential(torch.nn.Linear(6, 16), norm, torch.nn.Tanh(), torch.nn.Linear(16, 5))


def samples(count: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 6, generator=generator), torch.randint(0, 5, (count,), generator=generator)


def update_of(
    model: torch.nn.Module,
    optimizer: OptimizerOption | None = None,
    precision: PrecisionOption | None = None,
    clip: Clip | None = None,
    schedule: Schedule | None = None,
    noise: NoNoise | GaussianNoise | None = None,
    reduction: str = "mean",
) -> Update:
    option, precision = optimizer or SGD(lr=0.1), precision or FP32()
    built = option.build(model.parameters())
    parts = (schedule or Constant(), precision.build(CPU), noise or NoNoise(), clip or NoClip())
    return Update(model, CrossEntropy(reduction=reduction), built, *parts, lr=option.lr, stops=precision.stops)


def cut(x: torch.Tensor, y: torch.Tensor, sizes: list[int]) -> list[MicroBatch]:
    return [MicroBatch(a, b) for a, b in zip(x.split(sizes), y.split(sizes), strict=True)]


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=6),
    st.integers(0, 1000),
    st.floats(0, 0.9),
    st.sampled_from(["mean", "sum"]),
)
def test_accumulation_is_one_big_batch_whatever_the_sizes_and_counts(
    sizes: list[int], seed: int, ignored: float, reduction: str
) -> None:
    x, y = samples(sum(sizes), seed)
    y[torch.rand(len(y), generator=torch.Generator().manual_seed(seed)) < ignored] = -100
    y[0] = 0
    model, reference = net().double(), net().double()
    F.cross_entropy(reference(x.double()), y, ignore_index=-100, reduction=reduction).backward()
    expected = F.cross_entropy(reference(x.double()), y, ignore_index=-100)
    stats = update_of(model, SGD(lr=1.0, momentum=0.0), reduction=reduction)(cut(x.double(), y, sizes))
    assert stats.loss.item() == pytest.approx(expected.item(), rel=1e-6)
    moved = weights(net().double()) - weights(model)
    assert moved.numpy() == pytest.approx(
        torch.cat([p.grad.flatten() for p in reference.parameters()]).numpy(), rel=1e-6, abs=1e-7
    )


def plain_loop(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    windows: list[list[MicroBatch]],
    dtype: torch.dtype | None,
    max_norm: float,
) -> tuple[list[float], list[float]]:
    """The usual loop: autocast, GradScaler, mean over the window, unscale, clip, step, update."""
    scaler = torch.amp.GradScaler("cpu", enabled=dtype is torch.float16, init_scale=2.0**12)
    losses, norms = [], []
    for batches in windows:
        optimizer.zero_grad()
        count = sum(len(b.targets) for b in batches)
        total = 0.0
        for batch in batches:
            with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
                loss = F.cross_entropy(model(batch.inputs), batch.targets, reduction="sum") / count
            scaler.scale(loss).backward()
            total += loss.item()
        scaler.unscale_(optimizer)
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm).item())
        scaler.step(optimizer)
        scaler.update()
        losses.append(total)
    return losses, norms


@pytest.mark.parametrize(
    "precision", [FP32(), BF16(), FP16(init_scale=2.0**12, cpu_gemm="native")], ids=["fp32", "bf16", "fp16"]
)
@pytest.mark.parametrize("optimizer", [SGD(lr=0.1), Adam(lr=0.01), AdamW(lr=0.01)], ids=["sgd", "adam", "adamw"])
def test_trajectory_equals_a_hand_written_loop(precision: PrecisionOption, optimizer: OptimizerOption) -> None:
    x, y = samples(66)
    windows = [cut(x[i : i + 11], y[i : i + 11], [4, 4, 3]) for i in range(0, 66, 11)]
    model, reference = net(), net()
    kinds = {SGD: torch.optim.SGD, Adam: torch.optim.Adam, AdamW: torch.optim.AdamW}
    rest = {"momentum": 0.9} if isinstance(optimizer, SGD) else {}
    plain = kinds[type(optimizer)](reference.parameters(), lr=optimizer.lr, **rest)
    dtype = {FP32: None, BF16: torch.bfloat16, FP16: torch.float16}[type(precision)]
    losses, norms = plain_loop(reference, plain, windows, dtype, max_norm=0.5)
    update = update_of(model, optimizer, precision, NormClip(0.5))
    stats = [update(batches) for batches in windows]
    # Summing losses before or after a division, and rounding to bf16 or fp16, differ in the last digits.
    tolerance = 1e-5 if dtype is None else 2e-3
    assert [s.loss.item() for s in stats] == pytest.approx(losses, rel=tolerance)
    assert [s.grad_norm.item() for s in stats] == pytest.approx(norms, rel=tolerance * 5)
    assert weights(model).numpy() == pytest.approx(weights(reference).numpy(), abs=tolerance * 5)
    assert update.applied.item() == 6


def overflowing(x: torch.Tensor) -> torch.Tensor:
    """Inputs whose forward pass leaves fp16's range, and whose gradient leaves fp32's."""
    return x * 1e38


def everything(update: Update, model: torch.nn.Module) -> list[torch.Tensor]:
    """The state that only an applied update may change."""
    state = [v for s in update.optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
    tensors = [*model.parameters(), *model.buffers(), *state, *update.clip_state.values(), update.applied]
    return [t.detach().clone().nan_to_num(nan=-1.0) for t in tensors]


OPTIMIZERS: list[Callable[[bool], OptimizerOption]] = [
    lambda fused: SGD(lr=0.1, fused=fused),
    lambda fused: Adam(lr=0.01, fused=fused),
    lambda fused: AdamW(lr=0.01, fused=fused),
]


@pytest.mark.parametrize("make", OPTIMIZERS, ids=["sgd", "adam", "adamw"])
@pytest.mark.parametrize("how", ["plain", "fused", "in_kernel"])
@pytest.mark.parametrize("clip", [NoClip(), AutoClip(history=5), ZClip(warmup=2)], ids=["none", "autoclip", "zclip"])
@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
def test_a_skipped_update_moves_nothing_but_the_scale(make, how: str, clip: Clip, first: bool) -> None:
    """The run with a skipped update ends with bitwise the weights of the run without it."""
    x, y = samples(12)
    ends = []
    for meets in (True, False):
        model = net(batch_norm=True)
        update = update_of(model, make(how != "plain"), FP16(growth_interval=100), clip, Warmup(4))
        update.in_kernel = how == "in_kernel"
        for i in range(3):
            if meets and i == (0 if first else 2):
                before, scale = everything(update, model), update.precision.scale.item()
                stats = update([MicroBatch(overflowing(x), y)])
                assert stats.skipped.item() == 1.0 and update.precision.scale.item() == scale / 2
                after = everything(update, model)
                if before and len(before) == len(after):
                    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
                assert torch.isfinite(torch.cat([b.flatten().float() for b in model.buffers()])).all()
            update.precision.loss_scale.scale.fill_(1024.0)
            stats = update([MicroBatch(x, y)])
            assert stats.applied.item() == i + 1 and stats.lr.item() == pytest.approx(update.base_lr * (i + 1) / 4)
        ends.append(weights(model))
    assert torch.equal(*ends)


@pytest.mark.parametrize("precision", [FP32(), FP16(init_scale=1024.0, growth_interval=2)], ids=["fp32", "fp16"])
def test_a_window_without_a_target_is_no_update(precision: PrecisionOption) -> None:
    """With momentum, decay and a schedule: a run with such windows ends with bitwise the weights of one without."""
    x, y = samples(12)
    ends = []
    for meets in (True, False):
        model = net(batch_norm=True)
        update = update_of(model, SGD(lr=0.1, weight_decay=0.1), precision, AutoClip(history=5), Warmup(4))
        for i in range(3):
            if meets:
                before, scale = everything(update, model), copy.deepcopy(update.precision.state_dict())
                stats = update(
                    [MicroBatch(x, torch.full_like(y, -100)), MicroBatch(x * 1e38, torch.full_like(y, -100))]
                )
                assert (stats.skipped.item(), stats.empty.item()) == (1, True) and math.isnan(stats.loss.item())
                assert update.precision.state_dict() == scale and stats.applied.item() == i
                assert all(torch.equal(a, b) for a, b in zip(before, everything(update, model), strict=True))
            stats = update([MicroBatch(x, y), MicroBatch(x, torch.full_like(y, -100))])
            assert (stats.skipped.item(), stats.empty.item(), stats.applied.item()) == (0, False, i + 1)
        ends.append(weights(model))
    assert torch.equal(*ends)


def test_a_gradient_that_is_not_finite_halts_fp32_for_good() -> None:
    x, y = samples(8)
    model = net()
    update = update_of(model)
    update([MicroBatch(x, y)])
    before = weights(model)
    bad = x.clone()
    bad[0, 0] = math.nan
    assert update([MicroBatch(bad, y)]).skipped.item() == 1
    assert update([MicroBatch(x, y)]).skipped.item() == 1
    assert torch.equal(weights(model), before) and update.applied.item() == 1


@pytest.mark.parametrize("precision", [FP32("skip"), BF16("skip")], ids=["fp32", "bf16"])
def test_a_gradient_that_is_not_finite_is_skipped_if_configured(precision: PrecisionOption) -> None:
    x, y = samples(8)
    model = net()
    update = update_of(model, precision=precision)
    bad = x.clone()
    bad[0, 0] = math.inf
    before = weights(model)
    assert update([MicroBatch(bad, y)]).skipped.item() == 1 and torch.equal(weights(model), before)
    assert update([MicroBatch(x, y)]).skipped.item() == 0 and not torch.equal(weights(model), before)


def test_a_scale_below_one_cannot_bring_infinities_into_the_weights() -> None:
    """Scaled gradients may be finite and overflow in the unscaling, which GradScaler does not see."""
    model = torch.nn.Linear(1, 2, bias=False)
    precision = FP16(init_scale=2.0**-100, min_scale=2.0**-110, cpu_gemm="native")
    update = update_of(model, SGD(lr=1.0, momentum=0.0), precision)
    before = weights(model)
    scaled = torch.tensor([[1e25], [1e25]])
    for p in model.parameters():
        p.register_hook(lambda grad: scaled)
    stats = update([MicroBatch(torch.ones(2, 1), torch.tensor([0, 1]))])
    assert stats.skipped.item() == 1 and torch.equal(weights(model), before)


def test_a_float64_model_is_a_plain_loop_to_its_own_rounding() -> None:
    x, y = samples(21)
    model, plain = net().double(), net().double()
    update, optimizer = update_of(model), torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for _ in range(5):
        loss = F.cross_entropy(plain(x.double()), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert update(cut(x.double(), y, [8, 8, 5])).loss.item() == pytest.approx(loss.item(), rel=1e-14)
    assert torch.allclose(weights(model), weights(plain), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize(("size", "max_norm", "dtype"), [(1e200, 0.5, "float64"), (1e30, 1e-20, "float32")])
def test_no_square_and_no_coefficient_leaves_the_range_of_numbers(size: float, max_norm: float, dtype: str) -> None:
    p = torch.nn.Parameter(torch.zeros(3, dtype=getattr(torch, dtype)))
    p.grad = size * torch.tensor([3.0, 0.0, -4.0], dtype=p.dtype)
    gradients = measure(["p"], [p])
    assert gradients.total.item() == pytest.approx(5 * size, rel=1e-6)
    NormClip(max_norm).clip_(gradients, {})
    assert (p.grad / max_norm).tolist() == pytest.approx([0.6, 0.0, -0.8], rel=1e-6)


@pytest.mark.parametrize("clip", [NormClip(0.5), ValueClip(), PerLayerClip(), AdaptiveClip()], ids=str)
def test_finite_gradients_of_1e30_are_clipped_and_not_zeroed(clip: Clip) -> None:
    x, y = samples(8)
    model = net()
    update = update_of(model, SGD(lr=1.0, momentum=0.0), clip=clip)
    for p in model.parameters():
        p.register_hook(lambda grad: grad * 1e30)
    before = weights(model)
    stats = update([MicroBatch(x, y)])
    assert stats.skipped.item() == 0 and 1e28 < stats.grad_norm.item() < 1e32
    step = (weights(model) - before).norm().item()
    assert 1e-3 < step < 100
    if isinstance(clip, NormClip):
        assert step == pytest.approx(0.5, rel=1e-4)


def test_order_unscale_measure_noise_clip() -> None:
    """The reported norm is the true gradient's; noise far above the threshold is clipped with it."""
    x, y = samples(8)
    reference = net()
    F.cross_entropy(reference(x), y).backward()
    true = torch.cat([p.grad.flatten() for p in reference.parameters()]).norm().item()
    for precision in (FP32(), FP16(init_scale=2.0**10)):
        model = net()
        update = update_of(model, SGD(lr=1.0, momentum=0.0), precision, NormClip(0.01), noise=GaussianNoise(eta=100.0))
        before = weights(model)
        stats = update([MicroBatch(x, y)])
        assert stats.grad_norm.item() == pytest.approx(true, rel=1e-2)
        assert (weights(model) - before).norm().item() == pytest.approx(0.01, rel=1e-3)
        assert stats.clip_coefficient.item() < 0.01 / true


def test_gradients_are_cleared_and_do_not_leak_into_the_next_update() -> None:
    x, y = samples(8)
    model = net()
    update = update_of(model, SGD(lr=0.0 + 1e-9, momentum=0.0))
    first = update([MicroBatch(x, y)]).grad_norm.item()
    assert all(p.grad is None for p in model.parameters())
    assert update([MicroBatch(x, y)]).grad_norm.item() == pytest.approx(first, rel=1e-4)


def test_a_micro_batch_that_does_not_count_changes_nothing() -> None:
    x, y = samples(8)
    models = [net(), net()]
    update_of(models[0])([MicroBatch(x, y)])
    update_of(models[1])([MicroBatch(x, y), MicroBatch(x[:1], y[:1], counts=False)])
    assert torch.equal(weights(models[0]), weights(models[1]))


def test_state_is_restored_exactly() -> None:
    x, y = samples(8)
    model = net()
    update = update_of(model, AdamW(lr=0.01), FP16(growth_interval=2), ZClip(warmup=2), Warmup(10))
    for _ in range(4):
        update([MicroBatch(x, y)])
    other = copy.deepcopy(model)
    again = update_of(other, AdamW(lr=0.01), FP16(growth_interval=2), ZClip(warmup=2), Warmup(10))
    again.load_state_dict(copy.deepcopy(update.state_dict()))
    for u in (update, again):
        for _ in range(3):
            u([MicroBatch(x, y)])
    assert torch.equal(weights(model), weights(other))
    assert update.precision.scale.item() == again.precision.scale.item()


@pytest.mark.gpu
@pytest.mark.parametrize("clip", [NoClip(), NormClip(0.5), ValueClip(), PerLayerClip(), ZClip()], ids=str)
@pytest.mark.parametrize("make", OPTIMIZERS, ids=["sgd", "adam", "adamw"])
def test_on_cuda_an_update_never_waits_for_the_device(make, clip: Clip) -> None:
    device = torch.device("cuda")
    x, y = (t.to(device) for t in samples(12))
    model = net().to(device)
    option, precision = make(True), FP16()
    parts = (Warmup(4), precision.build(device), NoNoise(), clip)
    update = Update(model, CrossEntropy(), option.build(model.parameters()), *parts, lr=option.lr, stops=False)
    update([MicroBatch(x, y)])
    torch.cuda.set_sync_debug_mode("error")
    try:
        update([MicroBatch(x, y)])
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_noise_that_is_not_finite_is_not_applied() -> None:
    x, y = samples(8)
    model = net()
    update = update_of(model, noise=GaussianNoise(eta=1e80))
    before = weights(model)
    assert update([MicroBatch(x, y)]).skipped.item() == 1 and torch.equal(weights(model), before)


def test_a_buffer_that_a_skipped_update_fills_first_is_none_again() -> None:
    class Filled(torch.nn.Linear):
        def __init__(self) -> None:
            super().__init__(6, 5)
            self.register_buffer("largest", None)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.largest is None:
                self.largest = x.detach().max()
            return super().forward(x)

    x, y = samples(8)
    model = Filled()
    update = update_of(model, precision=FP32("skip"))
    assert update([MicroBatch(x * math.nan, y)]).skipped.item() == 1 and model.largest is None
    assert update([MicroBatch(x, y)]).skipped.item() == 0 and torch.equal(model.largest, x.max())


def test_a_buffer_that_a_skipped_update_registers_first_is_gone_again() -> None:
    class Late(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net(batch_norm=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not hasattr(self.inner, "largest"):
                self.inner.register_buffer("largest", x.detach().max())
            return self.inner(x)

    x, y = samples(8)
    model = Late()
    update = update_of(model, precision=FP32("skip"))
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    assert update([MicroBatch(x * math.nan, y)]).skipped.item() == 1
    now = dict(model.named_buffers())
    assert now.keys() == before.keys() and all(torch.equal(now[name], before[name]) for name in now)
    assert update([MicroBatch(x, y)]).skipped.item() == 0 and torch.equal(model.inner.largest, x.max())


def test_a_buffer_that_the_model_replaces_is_restored_too() -> None:
    class Average(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(6, 5)
            self.register_buffer("mean", torch.zeros(5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x)
            self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
            return y

    x, y = samples(8)
    model = Average()
    update = update_of(model, precision=FP32("skip"))
    update([MicroBatch(x, y)])
    before = model.mean.clone()
    bad = x.clone()
    bad[0, 0] = math.nan
    assert update([MicroBatch(bad, y)]).skipped.item() == 1
    assert torch.equal(model.mean, before)


@pytest.mark.parametrize("size", [1, 2])
def test_a_buffer_whose_shape_a_skipped_update_changes_has_the_old_one_again(size: int) -> None:
    class Growing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(6, 5)
            self.register_buffer("seen", torch.zeros(size))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen = torch.ones(3)
            return self.linear(x)

    x, y = samples(8)
    model = Growing()
    update = update_of(model, precision=FP32("skip"))
    for _ in range(2):
        assert update([MicroBatch(x * math.nan, y)]).skipped.item() == 1
        assert torch.equal(model.seen, torch.zeros(size))
    update.save_buffers()
    model(x)
    update.device = torch.device("cuda")  # where it is not known beforehand whether the update is skipped
    update.restore_buffers(torch.zeros((), dtype=torch.bool))
    assert torch.equal(model.seen, torch.ones(3))


class OneOf(World):
    """A rank of a simulated world: its sums of counts are those of all ranks, known beforehand."""

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.is_floating_point() else torch.full_like(tensor, COUNTED["all"])


class Unsynchronised:
    """What DDP adds to a model's interface, without its communication."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model, self.no_sync = model, nullcontext

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x)


COUNTED = {"all": 0}


@settings(deadline=None, max_examples=60)
@given(
    samples_in_epoch=st.integers(1, 40),
    batch_size=st.integers(1, 5),
    steps=st.integers(1, 4),
    ranks=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_the_mean_over_ranks_is_the_gradient_of_the_mean_over_the_window(
    samples_in_epoch: int, batch_size: int, steps: int, ranks: int, seed: int
) -> None:
    """Every window of an epoch, remainders and empty ranks included; DDP averages over the ranks."""
    x, y = samples(samples_in_epoch, seed)
    y[torch.rand(len(y), generator=torch.Generator().manual_seed(seed)) < 0.3] = -100
    order, cursor = epoch_order(samples_in_epoch, seed, 0), 0
    model = net().double()
    while cursor < samples_in_epoch:
        average = torch.zeros_like(weights(model))
        for rank in range(ranks):
            indices, following = window(order, cursor, batch_size, steps, rank, ranks)
            batches = [
                MicroBatch(x[i if len(i) else order[:1]].double(), y[i if len(i) else order[:1]], len(i) > 0)
                for i in indices
            ]
            COUNTED["all"] = int((y[order[cursor:following]] != -100).sum())
            update = update_of(model)
            update.world, update.model = OneOf(rank, ranks), Unsynchronised(model)
            update.accumulate(batches)
            average += torch.cat([p.grad.flatten() for p in model.parameters()]) / ranks
            update.zero_grad()
        whole = order[cursor:following]
        (F.cross_entropy(model(x[whole].double()), y[whole], ignore_index=-100, reduction="sum")).backward()
        expected = torch.cat([p.grad.flatten() for p in model.parameters()]) / max(COUNTED["all"], 1)
        model.zero_grad()
        assert average.numpy() == pytest.approx(expected.numpy(), abs=1e-6)
        cursor = following
