"""Schedules, accumulation and noise: plain functions of the number of applied updates."""

import math
from typing import Any

import pytest
import torch

from gradlab.base.option import Invalid
from gradlab.update.accumulation import Fixed, Ramp, Target
from gradlab.update.noise import GaussianNoise
from gradlab.update.plateau import Plateau
from gradlab.update.schedule import (
    Constant,
    CustomSchedule,
    InverseSqrt,
    OneCycle,
    Restarts,
    StepDecay,
    Warmup,
    WarmupCosine,
    WarmupStableDecay,
)


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


SGDR = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts
REFERENCES = {
    "cosine": (WarmupCosine(1, 10, 0.1), lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 9, 0.1), 10),
    "one cycle": (OneCycle().resolve(40), lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 1.0, total_steps=40), 40),
    "restarts": (Restarts(7, 1, 0.1), lambda o: SGDR(o, 7, 1, 0.1), 30),
    "growing restarts": (Restarts(3, 2), lambda o: SGDR(o, 3, 2), 400),
    "growing threefold": (Restarts(5, 3), lambda o: SGDR(o, 5, 3), 800),
    "inverse sqrt": (
        InverseSqrt(9),
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda u: min((u + 1) / 9, 3 * (u + 1) ** -0.5)),
        50,
    ),
    "wsd": (
        WarmupStableDecay(4, decay=0.25).resolve(40),
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda u: min((u + 1) / 4, 1, (40 - u) / 10)),
        40,
    ),
    "custom": (
        CustomSchedule("math:fmod").resolve(7),
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda u: math.fmod(u, 7)),
        20,
    ),
}


@pytest.mark.parametrize(("schedule", "reference", "count"), REFERENCES.values(), ids=REFERENCES)
def test_schedules_equal_torch(schedule: Any, reference: Any, count: int) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0, momentum=0.9)
    theirs, expected = reference(optimizer), []
    for i in range(count):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if i + 1 < count:
            theirs.step()
    assert factors(schedule, count) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_plateau_equals_torch(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    values = (torch.rand(60, generator=draw) + torch.linspace(2, 0, 60).clamp(min=1)).tolist()
    values[7], values[20] = math.nan, math.inf
    sign, mode = ("-", "max") if seed % 2 else ("", "min")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, mode, factor=0.5, patience=seed, threshold=0.02, cooldown=seed, min_lr=0.01
    )
    ours = Plateau(0.5, seed, 0.02, seed, 0.01, f"{sign}eval/x").resolve(60)
    for value in values:
        theirs.step(value)
        ours.observe({"eval/x": value})
        assert factors(ours, 2) == pytest.approx([optimizer.param_groups[0]["lr"]] * 2)
    assert 0.01 <= factors(ours, 1)[0] < 1


def test_plateau_follows_what_is_measured() -> None:
    with pytest.raises(Invalid, match=r"^schedule.metric=eval/f1: is not measured here; there are eval/loss$"):
        Plateau(metric="eval/f1").observe({"eval/loss": 1.0})
    option = Plateau(patience=0)
    used = option.resolve(9)
    for loss in (1.0, 2.0):
        used.observe({"eval/loss": loss})
    assert factors(used, 1) == [0.1] and factors(option, 1) == factors(option.resolve(9), 1) == [1]


def test_a_schedule_by_name_that_fails_is_told_in_a_line() -> None:
    for target, why in {
        "math:log": "raises ValueError: ",
        "operator:neg": "raises TypeError: ",
        "operator:getitem": "raises TypeError: ",
        "nets:x": "nets has no x",
        "x": "of the",
    }.items():
        with pytest.raises(Invalid, match=f"target={target}: .*{why}"):
            CustomSchedule(target).resolve(7)
    with pytest.raises(Invalid, match=r"operator:sub -> -7.0: must be >= 0 and finite"):
        CustomSchedule("operator:sub").resolve(7)


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
    assert noise.norm(9, 200_000) == pytest.approx(first.norm().item(), rel=0.01)
