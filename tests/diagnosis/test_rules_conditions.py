"""Each condition of the rules: a stream in which it alone decides."""

import math

import pytest
import torch
from test_rules import DEAD_AT_END, FAILED, FALLING, FLAT, NAMES, codes, drift, evaluated, line, run, verdict

from gradlab.diagnosis.diagnose import Stream, diagnose
from gradlab.diagnosis.inspection import Inspection
from gradlab.diagnosis.options import Thresholds
from gradlab.diagnosis.replay.overflow import Overflow
from gradlab.diagnosis.replay.ranges import range_of

ONES = [1.0] * 60


def began(code: str, norms: list[float], **rest) -> int | None:
    found = verdict([line(i, 1.0, norm) for i, norm in enumerate(norms, 1)], **rest).findings
    return next(f.began for f in found if f.code == code)


def test_a_few_updates_are_judged_only_beyond_doubt() -> None:
    lost = [line(i, loss) for i, loss in enumerate([2.0, 200.0, 200.0, 200.0, 200.0])]
    assert "diverged" not in codes(lost[:4], constant=2.0) and "diverged" in codes(lost, constant=2.0)
    nothing = [line(i, math.nan, math.nan, True) for i in range(10)]
    assert verdict(nothing).verdict == "nan_gradient", "no update was ever applied"
    assert verdict([]).verdict == "healthy" and not verdict([]).unhealthy


def test_evaluations_decide_whether_a_model_is_better_than_a_constant_answer() -> None:
    """Over the last losses; unless training has come to half of it, by heart."""

    def learns(last: float, *evals: float) -> bool:
        lines = [line(i, 2.0 + (last - 2.0) * min(i, 60) / 60) for i in range(100)]
        found = verdict([*lines, *evaluated(*evals)], constant=1.0, half=True, inspection=Inspection(flushed=0.5))
        return "underflow_fp16" not in {f.code for f in found.findings if f.severity == "critical"}

    assert learns(0.9) and not learns(0.96)
    assert learns(0.96, 0.94) and not learns(0.9, 0.96), "the evaluation counts"
    assert learns(0.96, math.nan, 0.94) and not learns(0.9, 0.96, math.nan)
    assert learns(0.49, 1.0) and not learns(0.51, 1.0)


def test_the_progress_of_a_run_that_has_not_learnt_is_reported() -> None:
    for losses, constant, message in (
        ([2.0 - min(i, 50) / 50 for i in range(100)], 1.04, "the loss (1) is about that of a constant answer (1.04)"),
        (FLAT, None, "improved by 0.0%"),
    ):
        stream = Stream(Thresholds(), NAMES)
        for i, loss in enumerate(losses):
            stream.observe(line(i, loss), {"grad/layer": [1.0, 1.0, 1.0, 1001.0]})
        assert message in diagnose(stream, constant=constant).sentence


def test_a_run_that_is_too_short_is_not_stuck() -> None:
    half = {"half": True, "inspection": Inspection(flushed=0.5)}
    assert (
        run(FLAT[:39], **half)["underflow_fp16"] == "warning" and run(FLAT[:40], **half)["underflow_fp16"] == "critical"
    )


def test_exploding_began_where_the_norm_first_left_its_range() -> None:
    assert began("exploding", [*ONES, 101.0, 2000.0, 3000.0], **FAILED) == 61
    calm = [*ONES, 150.0, *[1.0] * 10, math.nan, *[1.0] * 10]
    assert "exploding" not in run([1.0] * len(calm), calm, **FAILED), "survived: 20 calm updates, whatever one said"


def test_exploding_needs_the_loss_to_be_lost() -> None:
    grown = ONES + [150.0] * 15
    assert "exploding" not in run([1.0] * 75, grown)
    assert "exploding" in run([1.0] * 75, grown, **FAILED)
    assert "exploding" in run(ONES + [4.0] * 40, ONES + [150.0] * 40), "it rose"
    assert "exploding" in run([1.0] * 90, ONES + [150.0] * 30, skipped=DEAD_AT_END["skipped"]), "nothing is applied"
    wide = [20.0] * 60 + [150.0] * 40
    assert "exploding" not in run(ONES + [4.0] * 40, wide), "not ten times what is usual"


def test_a_norm_that_is_large_from_the_beginning_explodes_if_it_grows_or_the_loss_does() -> None:
    assert "exploding" not in run([1.0] * 100, [400.0] * 100, **FAILED)
    assert "exploding" in run([1.0] * 100, [400.0] * 95 + [4100.0] * 5, **FAILED)
    assert "exploding" in run(ONES + [4.0] * 40, [400.0] * 100)
    assert "exploding" in run([1.0] * 10, [400.0] * 10, **FAILED), "too few to know what is usual"
    assert "exploding" in run([1.0] * 100, [1.0] * 30 + [101.0] * 70, **FAILED), "it has grown, and is usual by now"


@pytest.mark.parametrize(
    ("phase", "outputs", "found"), [("loss", 1.0, False), ("forward", 1.0, True), ("loss", 1e5, True)]
)
def test_exploding_is_not_the_loss_functions_own_doing(phase: str, outputs: float, found: bool) -> None:
    overflow = Overflow(phase, "layer", "Linear", outputs=range_of("outputs", torch.tensor([outputs])))
    assert ("exploding" in run([1.0] * 63, [*ONES, 101.0, 1e3, 1e4], overflow=overflow, **FAILED)) is found


def test_spikes_of_the_norm_are_beyond_its_spread_and_finite() -> None:
    assert "spike" not in run(FALLING, [1.0] * 38 + [50.0] + [1.0] * 61), "what is usual is not known yet"
    assert "spike" in run(FALLING, [1.0] * 39 + [50.0] + [1.0] * 60)
    assert "spike" not in run(FALLING, [1.0] * 60 + [math.inf] + [1.0] * 39)
    wide = [1.0, 2.0, 4.0, 8.0, 16.0] * 20  # median 4, spread 4.4
    assert "spike" not in run(FALLING, [*wide[:60], 40.0, *wide[61:]])
    assert "spike" in run(FALLING, [*wide[:60], 50.0, *wide[61:]])
    for at in (0, 30):  # the first and the middle one of those known are looked at before their median
        assert "spike" in run(FALLING, [1.0] * at + [20.0] + [1.0] * (59 - at) + [50.0] + [1.0] * 39)
    assert began("spike", [*ONES, 50.0, *[1.0] * 9, 60.0, *ONES]) == 61


@pytest.mark.parametrize("code", ["growing_norm", "decaying_norm"])
def test_a_trend_has_one_direction(code: str) -> None:
    there = drift(20.0)
    back = [*there[:10], *reversed(there[10:90]), *there[90:]]
    for norms, found in ((there, True), (back, False)):
        norms = norms if code == "growing_norm" else [1 / n for n in norms]
        assert (code in run(FALLING, norms)) is found


def test_no_gradient_where_there_is_no_loss_left_is_no_finding() -> None:
    zeros = ONES + [0.0] * 40
    assert "zero_gradient" not in run(ONES + [0.0] * 40, zeros) and "zero_gradient" in run(ONES + [0.1] * 40, zeros)
