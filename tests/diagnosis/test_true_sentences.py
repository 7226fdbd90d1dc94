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
from gradlab.measure.flat_units import FlatUnits
from gradlab.measure.samples import Sample, ranked

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


def test_the_largest_update_is_that_of_all_that_were_measured_in_a_long_run() -> None:
    stream = Stream(Thresholds(), NAMES)
    for i in range(1, 2001):
        stream.observe(line(i, 2.0) | {"update/ratio": 7.7 if i == 1002 else 0.2})
    found = told(diagnose(stream), "update_too_large")
    assert "7.7 at most" in found.sentence and "of 2000" in found.sentence and found.evidence["largest"] == 7.7


def test_a_norm_that_falls_in_between_does_not_grow_throughout() -> None:
    norms = [1.1**i for i in range(60)] + [1.1 ** (60 - i) for i in range(10)] + [1.1 ** (50 + i) for i in range(50)]
    losses = [2.0 - i / 200 for i in range(120)]
    found = verdict([line(i, loss, n) for i, (loss, n) in enumerate(zip(losses, norms, strict=True), 1)])
    assert "throughout" not in told(found, "growing_norm").sentence


@pytest.mark.parametrize(
    ("measured", "cause"),
    [
        ({"update/ratio": 0.3, "param/norm": 10.0}, "the learning rate"),
        ({"update/ratio": 0.3, "param/norm": 0.1}, "the initial weights"),
        ({"update/ratio": 1e-4, "param/norm": 10.0}, "the gradient is multiplied"),
    ],
)
def test_the_first_cause_of_an_explosion_is_what_was_measured(measured: dict[str, float], cause: str) -> None:
    lines = [line(1, 1.0) | measured, *(line(i, 1.0) for i in range(2, 61)), line(61, 1.0, 1e3)]
    causes = told(verdict(lines, **FAILED), "exploding").causes
    assert len(causes) == 3 and causes[0].startswith(cause)


@pytest.mark.parametrize(("residual", "normalised"), [(True, True), (True, False), (False, True), (False, False)])
def test_what_a_model_has_is_not_what_it_lacks(residual: bool, normalised: bool) -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(4, 4)
            self.norm = torch.nn.LayerNorm(4) if normalised else torch.nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.inner(self.norm(x)).relu()
            return x + y if residual else y

    units = FlatUnits(model := torch.nn.Sequential(*(Block() for _ in range(4))))
    with units.watching():
        model(torch.randn(2, 4))
    assert (units.has("residual"), units.has("normalised")) == (residual, normalised)
    stream = Stream(Thresholds(), NAMES)
    for i, loss in enumerate(FLAT, 1):
        stream.observe(line(i, loss), {"grad/layer": [1.0, 1.0, 1.0, 1e5]})
    seen = Inspection(residual=residual, normalised=normalised)
    said = " ".join(told(diagnose(stream, inspection=seen), "vanishing").causes)
    assert ("residual" not in said) == residual and ("normalisation" not in said) == normalised


def test_what_a_run_does_is_not_what_it_lacks() -> None:
    rising = [line(i, 2 + i / 10) | {"lr": 1e-3 * i} for i in range(1, 100)]
    assert told(verdict(rising, clips=True), "diverged").causes == ["the learning rate is too high"]
    constant = [one | {"lr": 1e-3} for one in rising]
    assert len(told(verdict(constant), "diverged").causes) == 3


def test_a_loss_that_is_not_finite_at_the_end_has_not_risen_to_infinity() -> None:
    """Of one that fell without bound the last finite one is told; and of an end that is a number, that."""
    for last in (math.nan, -math.inf, math.inf):
        lines = [*(line(i, 1.0) for i in range(1, 61)), line(61, -1e9, 1e9), line(62, last, math.nan)]
        assert "from 1 to -1e+09, its last finite value" in told(verdict(lines, **FAILED), "exploding").sentence


def test_a_loss_that_falls_without_bound_after_a_noisy_beginning_has_no_floor() -> None:
    losses = [-1.0 - 0.3 * (-1) ** i for i in range(28)] + [-(10.0**i) for i in range(1, 9)]
    norms = [1.0] * 28 + [10.0**i for i in range(1, 9)]
    lines = [line(i, loss, n) for i, (loss, n) in enumerate(zip(losses, norms, strict=True), 1)]
    assert verdict(lines, **FAILED).verdict == "unbounded_loss"


@pytest.mark.parametrize(("ratio", "cause"), [(0.3, "far too high"), (1e-5, "far too low"), (1e-3, "do not belong")])
def test_the_rate_is_the_first_cause_only_where_updates_show_it(ratio: float, cause: str) -> None:
    lines = [line(i, 2.0) | {"update/ratio": ratio} for i in range(1, 101)]
    assert cause in told(verdict(lines, constant=2.0), "not_learning").causes[0]
    dead = Inspection([ActivationOutput("a", "ReLU", None, 1.0)])
    causes = told(verdict(lines, inspection=dead), "dead_units").causes
    assert (
        ("the learning rate is too high" in causes) == (causes[0] == "the learning rate is too high") == (ratio > 0.1)
    )


def test_layers_that_no_gradient_reaches_do_not_vanish() -> None:
    stream = Stream(Thresholds(), NAMES)
    for i, loss in enumerate(FLAT, 1):
        stream.observe(line(i, loss), {"grad/layer": [None, None, 1.0, 1.0]})
    assert {f.code for f in diagnose(stream).findings} & {"vanishing", "broken_graph"} == {"broken_graph"}


@pytest.mark.parametrize("failing", [1, 5])
def test_samples_are_named_only_where_few_of_an_update_fail_by_themselves(failing: int) -> None:
    samples = {1: ranked([Sample(i, math.nan if i < failing else 1.0, 1.0) for i in range(16)])}
    o = Overflow("loss", "", "", operation="log", failure="log of a negative number", outputs=range_of("o", ORDINARY))
    found = told(verdict([line(1, math.nan)], overflow=o, samples_of=lambda _: samples, **FAILED), "nan_loss")
    assert found.evidence["samples"] == ([0] if failing == 1 else [])
    assert ("sample 0 is not finite" if failing == 1 else "5 of its 16 samples are not finite") in found.sentence


def test_an_overflow_in_the_backward_pass_is_the_cause_of_a_gradient_that_is_not_finite() -> None:
    causes = told(verdict([line(1, 1.0, math.nan)], overflow=Overflow("backward", "a", "A"), **FAILED), "nan_gradient")
    assert causes.causes == ["an overflow in the backward pass"]
