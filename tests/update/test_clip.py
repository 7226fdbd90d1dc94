"""Clipping against PyTorch's own, plain formulas in float64, and the properties that define each strategy."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradlab.base.option import Invalid
from gradlab.update.clip import (
    AdaptiveClip,
    AutoClip,
    Clip,
    NoClip,
    NormClip,
    PerLayerClip,
    ValueClip,
    ZClip,
    layer_norms,
    norm_coefficient,
)
from gradlab.update.gradients import Gradients, measure
from gradlab.update.layers import layers_of

SUM, LARGEST = NormClip(1.0, 1.0), NormClip(1.0, math.inf)
ALL: list[Clip] = [NoClip(), NormClip(), SUM, LARGEST, ValueClip(), PerLayerClip(), AdaptiveClip(), AutoClip(), ZClip()]


def model_with_gradients(scale: float = 1.0, seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 3, 3), torch.nn.Flatten(), torch.nn.Linear(12, 5), torch.nn.Linear(5, 2)
    )
    for p in model.parameters():
        p.grad = torch.randn_like(p) * scale
    return model


def gradients_of(model: torch.nn.Module) -> Gradients:
    return measure([n for n, _ in model.named_parameters()], list(model.parameters()))


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters()]).double()


@settings(deadline=None, max_examples=50)
@given(st.sampled_from([1.0, 2.0, math.inf]), st.floats(-6, 6), st.floats(-3, 3), st.integers(0, 1000))
def test_every_type_of_norm_equals_torch(order: float, exponent: float, log_max: float, seed: int) -> None:
    model, reference = model_with_gradients(10.0**exponent, seed), model_with_gradients(10.0**exponent, seed)
    total = torch.nn.utils.clip_grad_norm_(reference.parameters(), 10.0**log_max, norm_type=order)
    gradients, clip = gradients_of(model), NormClip(10.0**log_max, order)
    assert clip.reach(gradients).item() == pytest.approx(total.item(), rel=1e-5)
    before = gradients.total.item()
    clipped = clip.clip_(gradients, {})
    # torch divides by total + 1e-6, hence the tolerance at small norms
    assert flat(model).numpy() == pytest.approx(flat(reference).numpy(), rel=1e-5 + 1.1e-6 / total.item())
    assert bool(clipped.acted) == (total.item() > 10.0**log_max)
    assert clipped.coefficient.item() == pytest.approx(flat(model).norm().item() / before, rel=1e-5)


def test_the_sum_of_magnitudes_is_right_beyond_the_range_of_fp32() -> None:
    model = model_with_gradients(1e38)
    NormClip(1.0, 1.0).clip_(gradients_of(model), {})
    assert flat(model).abs().sum().item() == pytest.approx(1.0, rel=1e-5)


def test_norm_keeps_the_direction_and_reaches_the_threshold_exactly() -> None:
    model = model_with_gradients(1e30)
    before = flat(model)
    NormClip(1.0).clip_(gradients_of(model), {})
    after = flat(model)
    assert after.norm().item() == pytest.approx(1.0, rel=1e-6)
    assert torch.dot(before / before.norm(), after / after.norm()).item() == pytest.approx(1.0, rel=1e-6)


def test_norm_coefficient_takes_tensors_of_thresholds() -> None:
    totals, limits = torch.tensor([0.0, 1.0, 4.0, math.nan]), torch.tensor([1.0, 2.0, 1.0, 1.0])
    got = norm_coefficient(totals, limits)
    assert got[:3].tolist() == [1.0, 1.0, 0.25] and got[3].isnan()


def test_value_equals_torch_and_reports_whether_it_acted() -> None:
    model, reference = model_with_gradients(), model_with_gradients()
    clipped = ValueClip(0.5).clip_(gradients_of(model), {})
    before = flat(reference).norm()
    torch.nn.utils.clip_grad_value_(reference.parameters(), 0.5)
    assert torch.equal(flat(model), flat(reference))
    assert clipped.acted and clipped.coefficient.item() == pytest.approx((flat(model).norm() / before).item(), rel=1e-6)
    small = model_with_gradients(1e-3)
    assert not ValueClip(0.5).clip_(gradients_of(small), {}).acted


def test_layers_are_a_partition() -> None:
    names = ["a.w", "a.b", "b.c.w", "b.c.b", "b.w", "top"]
    layers, index = layers_of(names)
    assert layers == ["a", "b.c", "b", ""] and index == [0, 0, 1, 1, 2, 3]
    norms = layer_norms(torch.tensor([3.0, 4.0, 1.0, 0.0, 2.0, 5.0]), torch.tensor(index), 4)
    assert norms.tolist() == [5.0, 1.0, 2.0, 5.0]


def test_per_layer_clips_each_layer_once_and_to_the_threshold() -> None:
    model = model_with_gradients()
    with torch.no_grad():
        model[3].weight.grad *= 1e-3
        model[3].bias.grad *= 1e-3
    before = {n: p.grad.clone() for n, p in model.named_parameters()}
    PerLayerClip(1.0).clip_(gradients_of(model), {})
    for layer in (model[0], model[2]):
        norm = torch.cat([p.grad.flatten() for p in layer.parameters()]).norm()
        assert norm.item() == pytest.approx(1.0, rel=1e-6)
    for name in ("3.weight", "3.bias"):
        assert torch.equal(before[name], dict(model.named_parameters())[name].grad)


def test_agc_equals_the_paper_unit_by_unit_and_lets_zero_weights_move() -> None:
    model = model_with_gradients(10.0)
    torch.nn.init.zeros_(model[2].weight)
    grads = {n: p.grad.clone().double() for n, p in model.named_parameters()}
    AdaptiveClip(factor=0.02, eps=1e-3).clip_(gradients_of(model), {})
    for name, p in model.named_parameters():
        g, w = grads[name], p.detach().double()
        rows = range(g.shape[0]) if g.dim() > 1 else [slice(None)]
        for i in rows:
            limit = 0.02 * max(w[i].norm().item(), 1e-3)
            expected = g[i] * min(1.0, limit / g[i].norm().item())
            assert p.grad[i].double().numpy() == pytest.approx(expected.numpy(), rel=1e-4, abs=1e-12)
    assert model[2].weight.grad.abs().sum() > 0


def feed(clip: Clip, norms: list[float]) -> list[float]:
    """Norms after clipping a one-element gradient of each of these norms, every update applied."""
    state, after = clip.init(torch.device("cpu")), []
    for norm in norms:
        p = torch.nn.Parameter(torch.zeros(1))
        p.grad = torch.tensor([norm])
        state = clip.clip_(measure(["p"], [p]), state).state
        after.append(p.grad.item())
    return after


def test_autoclip_clips_at_the_percentile_of_the_history() -> None:
    torch.manual_seed(0)
    norms = torch.rand(50).tolist()
    for i, got in enumerate(feed(AutoClip(percentile=30, history=20), norms)):
        seen = torch.tensor(norms[max(0, i - 19) : i + 1], dtype=torch.float64)
        assert got == pytest.approx(min(norms[i], torch.quantile(seen, 0.3).item()), rel=1e-5)


def test_zclip_follows_the_paper() -> None:
    torch.manual_seed(1)
    norms = (1 + 0.1 * torch.randn(60)).tolist()
    norms[40] = 10.0
    seen, mean, variance, expected = [], 0.0, 0.0, []
    for i, norm in enumerate(norms):
        if i < 25:
            seen.append(norm)
            mean = sum(seen) / len(seen)
            variance = sum((x - mean) ** 2 for x in seen) / len(seen)
            expected.append(norm)
            continue
        z = (norm - mean) / math.sqrt(variance)
        target = mean + math.sqrt(variance) * 2.5**2 / z if z > 2.5 else norm
        expected.append(target)
        mean = 0.97 * mean + 0.03 * target
        variance = 0.97 * variance + 0.03 * (target - mean) ** 2
    assert feed(ZClip(), norms) == pytest.approx(expected, rel=1e-4)
    assert expected[40] < 1.5


@pytest.mark.parametrize("clip", ALL, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("case", ["none", "empty", "zero"])
def test_no_gradient_is_no_problem(clip: Clip, case: str) -> None:
    p = torch.nn.Parameter(torch.ones(0 if case == "empty" else 3))
    if case != "none":
        p.grad = torch.zeros_like(p)
    clipped = clip.clip_(measure(["p"], [p]), clip.init(torch.device("cpu")))
    assert not clipped.acted and clipped.coefficient.item() == 1.0


@pytest.mark.parametrize("clip", ALL, ids=lambda c: type(c).__name__)
def test_coefficient_is_the_ratio_of_the_norms(clip: Clip) -> None:
    state = clip.init(torch.device("cpu"))
    for i in range(30):
        model = model_with_gradients(1.0 if i < 29 else 50.0, seed=i)
        before = flat(model).norm()
        clipped = clip.clip_(gradients_of(model), state)
        state = clipped.state
        assert clipped.coefficient.item() == pytest.approx((flat(model).norm() / before).item(), rel=1e-5)
        assert bool(clipped.acted) == (clipped.coefficient.item() < 1)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: NormClip(-1), "max_norm"),
        (lambda: NormClip(math.nan), "max_norm"),
        (lambda: NormClip(1.0, 3.0), "norm_type"),
        (lambda: ValueClip(0), "max_value"),
        (lambda: PerLayerClip(-1), "max_norm"),
        (lambda: AdaptiveClip(factor=0), "factor"),
        (lambda: AutoClip(percentile=101), "percentile"),
        (lambda: ZClip(decay=1.0), "decay"),
    ],
)
def test_impossible_values_are_refused_by_name(make, field: str) -> None:
    with pytest.raises(Invalid) as error:
        make()
    assert error.value.field == field
