"""The loss scale against torch.amp.GradScaler, its floor, and the range of unscaling."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradlab.base.option import Invalid
from gradlab.update.precision import FP16, FP32, SCALE_FLOOR, updated_scale

CPU = torch.device("cpu")


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.booleans(), max_size=60),
    st.integers(1, 5),
    st.sampled_from([1.0, 65536.0, 2.0**100]),
    st.sampled_from([(2.0, 0.5), (3.0, 0.25), (1.5, 0.9)]),
)
def test_follows_gradscaler_for_any_sequence_of_overflows(
    overflows: list[bool], interval: int, init: float, factors: tuple[float, float]
) -> None:
    growth, backoff = factors
    reference = torch.amp.GradScaler("cpu", init, growth, backoff, interval)
    p = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([p], lr=0.0)
    option = FP16(init_scale=init, growth_factor=growth, backoff_factor=backoff, growth_interval=interval)
    precision = option.build(CPU)
    for overflow in overflows:
        reference.scale(torch.zeros(1))  # GradScaler makes its tensors at its first use
        p.grad = torch.tensor([float("inf") if overflow else 1.0])
        reference.step(optimizer)
        reference.update()
        precision.update(torch.tensor(float(overflow)))
        if reference.get_scale() > SCALE_FLOOR:
            exact = 0.0 if factors == (2.0, 0.5) else 1e-6 * reference.get_scale()  # 0.9 is rounded where 1/2 is not
            assert abs(precision.scale.item() - reference.get_scale()) <= exact


def test_backing_off_ends_at_the_floor_where_the_reciprocal_is_still_finite() -> None:
    precision = FP16().build(CPU)
    for _ in range(300):
        precision.update(torch.tensor(1.0))
    assert precision.scale.item() == SCALE_FLOOR
    gradient = torch.tensor([SCALE_FLOOR])
    precision.unscale_([gradient])
    assert gradient.item() == 1.0


def test_growth_never_reaches_infinity() -> None:
    scale, tracker = torch.tensor(3e38), torch.zeros((), dtype=torch.int32)
    for _ in range(3):
        scale, tracker = updated_scale(scale, tracker, torch.tensor(False), 2.0, 0.5, 1)
    assert scale.item() == pytest.approx(3e38)


def test_the_rule_serves_many_runs_at_once() -> None:
    scale, tracker = torch.tensor([8.0, 8.0, 8.0]), torch.tensor([0, 2, 0], dtype=torch.int32)
    found = torch.tensor([True, False, False])
    scale, tracker = updated_scale(scale, tracker, found, 2.0, torch.tensor([0.25, 0.5, 0.5]), 3)
    assert scale.tolist() == [2.0, 16.0, 8.0] and tracker.tolist() == [0, 0, 1]


def test_disabled_or_absent_scale_is_one_and_stays() -> None:
    for option in (FP32(), FP16(enabled=False)):
        precision = option.build(CPU)
        precision.update(torch.tensor(1.0))
        gradient = torch.tensor([0.3])
        precision.unscale_([gradient])
        assert precision.scale.item() == 1.0 and gradient.item() == pytest.approx(0.3)


def test_unscaling_is_exact_for_powers_of_two() -> None:
    precision = FP16(init_scale=2.0**20).build(CPU)
    true = torch.randn(100)
    scaled = true * 2.0**20
    precision.unscale_([scaled])
    assert torch.equal(scaled, true)


def test_state_is_restored() -> None:
    first, second = FP16(growth_interval=3).build(CPU), FP16(growth_interval=3).build(CPU)
    for found in (1.0, 0.0, 0.0):
        first.update(torch.tensor(found))
    second.load_state_dict(first.state_dict())
    for precision in (first, second):
        precision.update(torch.tensor(0.0))
    assert first.scale.item() == second.scale.item() == 65536.0


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"nonfinite": "ignore"}, "nonfinite"),
        ({"init_scale": 0}, "init_scale"),
        ({"growth_factor": 0.5}, "growth_factor"),
        ({"backoff_factor": 2}, "backoff_factor"),
        ({"growth_interval": 0}, "growth_interval"),
        ({"min_scale": 0}, "min_scale"),
        ({"check_every": 0}, "check_every"),
        ({"cpu_gemm": "slow"}, "cpu_gemm"),
    ],
)
def test_impossible_values_are_refused_by_name(fields: dict, name: str) -> None:
    with pytest.raises(Invalid) as error:
        FP16(**fields)
    assert error.value.field == name
