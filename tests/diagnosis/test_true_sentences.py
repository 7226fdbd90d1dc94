"""What a finding says is true of the run, also where another run of the same verdict differs."""

import math

import pytest
import torch
from test_rules import FAILED, FALLING, FLAT, NAMES, line, run, verdict

from gradlab.diagnosis.diagnose import Stream, diagnose
from gradlab.diagnosis.finding import Diagnosis, Finding
from gradlab.diagnosis.inspection import ActivationOutput, Inspection
from gradlab.diagnosis.options import Thresholds
from gradlab.diagnosis.replay.overflow import Overflow
from gradlab.diagnosis.replay.ranges import range_of

ORDINARY = torch.tensor([-1.0, 1.0])


def told(found: Diagnosis, code: str) -> Finding:
    return next(f for f in found.findings if f.code == code)


@pytest.mark.parametrize(
    ("operation", "failure", "cause"),
    [("log", "log of 0", "log of zero or"), ("div", "0/0", "a division by"), ("exp", "overflow", "exp of a")],
)
def test_the_cause_of_a_loss_that_is_not_finite_is_the_operation_that_failed(
    operation: str, failure: str, cause: str
) -> None:
    ranges = {"outputs": range_of("outputs", ORDINARY), "targets": range_of("targets", ORDINARY)}
    o = Overflow("loss", "", "", operation=operation, failure=failure, **ranges)
    causes = told(verdict([line(1, math.inf)], overflow=o, **FAILED), "nan_loss").causes
    assert len(causes) == 1 and causes[0].startswith(cause)
    other = told(
        verdict([line(1, math.inf)], overflow=Overflow("loss", "", "", operation="own", **ranges), **FAILED), "nan_loss"
    )
    assert other.causes and not any("targets" in c for c in other.causes), "those are finite"


@pytest.mark.parametrize("scaled", [True, False])
def test_a_missing_loss_scale_is_a_cause_only_where_there_is_none(scaled: bool) -> None:
    lines = [line(i, loss) for i, loss in enumerate(FLAT, 1)]
    half = {"half": True, "scaled": scaled, "inspection": Inspection(flushed=0.5)}
    causes = told(verdict(lines, **half), "underflow_fp16").causes
    assert (
        causes == ["the loss scale is too small"]
        if scaled
        else ["there is no loss scale, or one that is fixed and too small"]
    )


def test_a_norm_that_grows_all_the_time_has_no_single_outliers() -> None:
    growing = [1.1**i for i in range(100)]
    assert "spike" not in run(FALLING, growing) and run(FALLING, growing)["growing_norm"] == "info"
    norms = [500.0, *[1.0] * 59, 50.0, *[1.0] * 39]
    found = verdict([line(i, loss, n) for i, (loss, n) in enumerate(zip(FALLING, norms, strict=True), 1)])
    assert told(found, "spike").sentence.startswith("after the first 39 updates one gradient norm is far outside")


@pytest.mark.parametrize("ratios", [[0.5], [0.5, 1.5], [0.2, 0.3, 9.0]])
def test_the_size_of_updates_is_of_those_that_were_measured(ratios: list[float]) -> None:
    stream = Stream(Thresholds(), NAMES)
    for i in range(60):
        stream.observe(line(i + 1, 2.0) | ({"update/ratio": ratios[i]} if i < len(ratios) else {}))
    said = told(diagnose(stream), "update_too_large").sentence
    assert "measured" in said and (str(len(ratios)) in said or "one update" in said)
    assert f"{max(ratios):.2g}" in said


def test_the_rate_is_no_cause_of_a_scale_that_fell_before_any_update() -> None:
    """And the numbers of a run without a finite norm hold none."""
    lines = [line(i, 2.0, math.inf) | {"update/skipped": True, "amp/scale": 2.0**-i} for i in range(1, 30)]
    found = verdict(lines, half=True, scaled=True, scale_too_small=True, **FAILED)
    assert told(found, "scale_collapse").causes == ["activations pass fp16's largest number, 65504"]
    assert not any(key.startswith("largest") for key in found.evidence)
    assert not any(isinstance(v, float) and math.isnan(v) for v in found.evidence.values())
    assert found.unchecked["updates_lost"] == "no update was applied"


def test_a_loss_that_falls_from_far_above_a_constant_answer_is_on_its_way() -> None:
    """Its rate is not too high."""
    falling = [1000.0 - i for i in range(200)]
    found = told(verdict([line(i, loss) for i, loss in enumerate(falling, 1)], constant=1.0), "not_learning")
    assert "was falling to the end" in found.sentence and "the learning rate is too low" in found.causes[-1]
    flat = told(verdict([line(i, loss) for i, loss in enumerate(FLAT, 1)], constant=1.0), "not_learning")
    assert "falling to the end" not in flat.sentence


def test_a_run_that_is_judged_is_not_too_short_to_judge() -> None:
    lines = [line(i, 3.0) | {"update/ratio": 1e-8} for i in range(1, 91)]
    found = verdict(lines, constant=2.0)
    assert found.verdict == "stalled" and not any(f.code == "too_short" for f in found.findings)
    assert verdict(lines[:30], constant=2.0).verdict == "too_short"


def test_the_cause_of_a_gradient_that_is_not_finite_is_the_derivative_that_failed() -> None:
    o = Overflow("backward", "", "", operation="div", derivative="sqrt", failure="a division by zero")
    assert told(verdict([line(1, 1.0, math.nan)], overflow=o, **FAILED), "nan_gradient").causes == [
        "sqrt or norm at zero"
    ]


@pytest.mark.parametrize("operation", ["relu", "tanh"])
def test_an_activation_is_a_cause_of_vanishing_only_where_the_model_has_one(operation: str) -> None:
    seen = Inspection([ActivationOutput("a", "Own", None, None, operation=operation)])
    stream = Stream(Thresholds(), NAMES)
    for i, loss in enumerate(FLAT, 1):
        stream.observe(line(i, loss), {"grad/layer": [1.0, 1.0, 1.0, 1e5]})
    causes = told(diagnose(stream, inspection=seen), "vanishing").causes
    assert any("tanh" in c for c in causes) == (operation == "tanh") and "initial weights that are too small" in causes


def test_a_gradient_that_vanishes_in_training_is_not_the_architectures_fault() -> None:
    stream = Stream(Thresholds(), NAMES)
    for i, loss in enumerate(FLAT, 1):
        stream.observe(line(i, loss), {"grad/layer": [1.0, 1.0, 1.0, 1.0 if i < 5 else 1e5]})
    causes = told(diagnose(stream), "vanishing").causes
    assert len(causes) == 1 and "the learning rate" in causes[0]
