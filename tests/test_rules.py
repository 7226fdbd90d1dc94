"""Verdicts from synthetic streams: each rule where it applies, and where it must not."""

import math

import pytest

from gradlab.diagnosis.diagnose import Stream, diagnose
from gradlab.diagnosis.finding import Diagnosis
from gradlab.diagnosis.options import Thresholds


def line(attempt: int, loss: float, norm: float = 1.0, skipped: bool = False, scale: float = 1.0) -> dict:
    return {
        "attempt": attempt,
        "epoch": 1,
        "train/loss": loss,
        "grad/norm": norm,
        "update/skipped": skipped,
        "amp/scale": scale,
    }


def verdict(lines: list[dict], status: str = "completed", **rest) -> Diagnosis:
    stream = Stream(Thresholds())
    for one in lines:
        stream.observe(one)
    return diagnose(stream, status, **rest)


def test_a_falling_loss_is_healthy_also_below_zero() -> None:
    assert verdict([line(i, 2 - i / 100) for i in range(1, 100)]).verdict == "healthy"
    assert verdict([line(i, -2 - i / 200) for i in range(1, 100)]).verdict == "healthy"


def test_a_rising_loss_has_diverged_also_below_zero() -> None:
    assert verdict([line(i, 2 + i / 10) for i in range(1, 100)]).verdict == "diverged"
    assert verdict([line(i, -2 + i / 10) for i in range(1, 100)]).verdict == "diverged"


@pytest.mark.parametrize("good", [0, 60])
def test_a_run_that_ends_in_skipped_updates_is_not_healthy(good: int) -> None:
    lines = [line(i, 2.0) for i in range(good)]
    lines += [line(good + i, math.nan, math.nan, skipped=True) for i in range(40)]
    assert verdict(lines).verdict == "nan_gradient"


def test_a_few_skipped_updates_are_routine() -> None:
    lines = [line(i, 2.0 - i / 100, skipped=i % 10 == 0) for i in range(1, 100)]
    assert verdict(lines).verdict == "healthy"


def test_exploding_needs_the_blow_up_to_end_the_run() -> None:
    calm = [line(i, 1.0) for i in range(60)]
    blown = [line(60 + i, 10.0**i, 10.0 ** (2 * i)) for i in range(10)]
    assert verdict([*calm, *blown], "failed", error="no").verdict == "exploding"
    survived = [*calm, *blown, *(line(80 + i, 0.5) for i in range(40))]
    assert verdict(survived).verdict == "loss_spike_recovered" and not verdict(survived).ill
    assert verdict([*survived, line(200, math.nan, math.nan, True)], "failed", error="no").verdict == "nan_gradient"


def test_scale_collapse_is_what_ended_the_run_and_says_where_the_scale_began_to_fall() -> None:
    lines = [line(i, 2.0, scale=65536.0) for i in range(1, 60)]
    lines += [line(i, math.nan, math.nan, True, 65536 * 0.5 ** (i - 59)) for i in range(60, 100)]
    lines.insert(63, line(64, 2.0, scale=65536 * 0.5**5))  # one update comes through
    found = verdict(lines, "failed", error="grad_scale is too small, exiting: 1e-9", scale_too_small=True)
    seen = [found.evidence[name] for name in ("scale_fell_from", "scale_fell_in_epoch", "skipped_since")]
    assert found.verdict == "scale_collapse" and seen == [60, 1, 40] and found.evidence["skipped_last_in_a_row"] == 36


def test_what_could_not_be_checked_is_said() -> None:
    found = verdict([line(i, 2.0) for i in range(4)])
    assert found.verdict == "healthy" and {"diverged", "vanishing", "stalled"} <= set(found.unchecked)


def test_a_model_that_its_test_set_overflows_is_not_healthy() -> None:
    lines = [line(i, 2.0 - i / 100) for i in range(60)]
    assert verdict([*lines, {"eval/loss": 1.5}]).verdict == "healthy"
    found = verdict([*lines, {"eval/loss": 1.5}, {"eval/loss": math.nan}])
    assert found.verdict == "diverged" and "nan" in found.sentence


def test_where_the_scale_began_to_fall_outlives_a_growth_on_the_way() -> None:
    lines = [line(1, 2.0, scale=1.0)]
    lines += [line(1 + i, math.nan, math.nan, True, 0.5**i) for i in range(1, 20)]
    lines += [line(21, 2.0, scale=0.5**18)]
    found = verdict(lines, "failed", error="grad_scale is too small", scale_too_small=True)
    assert (found.evidence["scale_fell_from"], found.evidence["skipped_since"]) == (2, 19)
    assert "not the last" in found.sentence
    healed = [line(22, 2.0, scale=1.0), *(line(23 + i, math.nan, math.nan, True, 0.5 ** (i + 1)) for i in range(17))]
    again = verdict([*lines, *healed], "failed", error="grad_scale is too small", scale_too_small=True)
    assert (again.evidence["scale_fell_from"], again.evidence["skipped_since"]) == (23, 17)
