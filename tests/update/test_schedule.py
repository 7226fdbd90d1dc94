"""Schedules, accumulation and noise: plain functions of the number of applied updates."""

import math

import pytest
import torch

from gradlab.base.option import Invalid
from gradlab.update.accumulation import Fixed, Ramp, Target
from gradlab.update.noise import GaussianNoise
from gradlab.update.schedule import Constant, StepDecay, Warmup, WarmupCosine


def factors(schedule, count: int) -> list[float]:
    return schedule.factor(torch.arange(count)).tolist()


def test_schedules_equal_their_formulas() -> None:
    assert factors(Constant(), 3) == [1, 1, 1]
    assert factors(Warmup(4), 6) == [0.25, 0.5, 0.75, 1, 1, 1]
    assert factors(Warmup(0), 2) == [1, 1]
    assert factors(StepDecay(2, 0.5), 5) == [1, 1, 0.5, 0.5, 0.25]
    got = factors(WarmupCosine(2, 10, 0.1), 12)
    for i, value in enumerate(got):
        done = min(max((i + 1 - 2) / 8, 0), 1)
        expected = min((i + 1) / 2, 1) * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done)))
        assert value == pytest.approx(expected)
    assert got[1] == pytest.approx(1) and got[9:] == pytest.approx([0.1] * 3)


def test_cosine_takes_the_length_of_the_run() -> None:
    assert WarmupCosine(2).resolve(10) == WarmupCosine(2, 10)
    assert WarmupCosine(2, 5).resolve(10) == WarmupCosine(2, 5)


def test_cosine_equals_torch() -> None:
    p = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([p], lr=1.0)
    reference = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=9, eta_min=0.1)
    got = factors(WarmupCosine(1, 10, 0.1), 10)
    for value in got:
        assert value == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        reference.step()


def test_accumulation_follows_the_world_and_names_the_nearest_possible() -> None:
    assert Fixed(3).steps_at(0, 8, 2) == 3
    assert [Target(96).steps_at(0, 8, world) for world in (1, 2, 4)] == [12, 6, 3]
    with pytest.raises(Invalid) as error:
        Target(100).steps_at(0, 8, 4)
    assert "nearest: 96 or 128" in str(error.value) and error.value.field == "global_batch_size"
    with pytest.raises(Invalid, match="nearest: 32"):
        Target(3).steps_at(0, 8, 4)
    assert [Ramp(1, 5, 8).steps_at(u, 1, 1) for u in (0, 1, 2, 4, 8, 100)] == [1, 1, 2, 3, 5, 5]


def test_noise_has_the_annealed_deviation_and_depends_on_its_seed_alone() -> None:
    noise = GaussianNoise(eta=0.3, gamma=0.55)
    first, again, other = (torch.zeros(200_000) for _ in range(3))
    noise.add_([first], torch.tensor(9), seed=1)
    torch.rand(3)
    noise.add_([again], torch.tensor(9), seed=1)
    noise.add_([other], torch.tensor(9), seed=2)
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert first.std().item() == pytest.approx(math.sqrt(0.3 / 10**0.55), rel=0.01)
    assert abs(first.mean().item()) < 0.01
