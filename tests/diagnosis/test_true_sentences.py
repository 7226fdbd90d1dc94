"""What a finding says is true of the run, also where another run of the same verdict differs."""

import math
import statistics
from pathlib import Path

import pytest
import torch
from test_rules import FAILED, FALLING, FLAT, NAMES, line, run, verdict

from gradlab.diagnosis.causes import by_samples
from gradlab.diagnosis.diagnose import MetricStream, diagnose, remaining
from gradlab.diagnosis.finding import Diagnosis, Finding
from gradlab.diagnosis.inspection import ActivationOutput, Inspection
from gradlab.diagnosis.measurements import Measurements
from gradlab.diagnosis.options import Thresholds
from gradlab.diagnosis.replay.overflow import Overflow
from gradlab.diagnosis.replay.ranges import Range, range_of
from gradlab.measure.flat_units import FlatUnits
from gradlab.measure.rounded_off import narrow_types
from gradlab.measure.samples import Sample, named, ranked
from gradlab.runs.summary import summary_lines
from gradlab.train.outcome import Outcome

NEGATIVE = "log of a negative number"
ORDINARY = torch.tensor([-1.0, 1.0])


def told(found: Diagnosis, code: str) -> Finding:
    return next(f for f in found.findings if f.code == code)


@pytest.mark.parametrize(
    ("operation", "failure", "cause"),
    [
        ("log", "log of 0", "log of zero"),
        ("log", NEGATIVE, NEGATIVE),
        ("div", "0/0", "a division by"),
        ("exp", "overflow", "exp of a"),
    ],
)
def test_the_cause_of_a_loss_that_is_not_finite_is_the_operation_that_failed(
    operation: str, failure: str, cause: str
) -> None:
    ranges = {"outputs": range_of("outputs", ORDINARY), "targets": range_of("targets", ORDINARY)}
    o = Overflow("loss", "", "", operation=operation, failure=failure, **ranges)
    causes = told(verdict([line(1, math.inf)], overflow=o, **FAILED), "nan_loss").causes
    assert len(causes) == 1 and causes[0].startswith(cause) and " or of " not in causes[0]
    other = told(
        verdict([line(1, math.inf)], overflow=Overflow("loss", "", "", operation="own", **ranges), **FAILED), "nan_loss"
    )
    assert other.causes and not any("targets" in c for c in other.causes), "those are finite"


@pytest.mark.parametrize("scaled", [True, False])
def test_a_missing_loss_scale_is_a_cause_only_where_there_is_none(scaled: bool) -> None:
    lines = [line(i, loss) for i, loss in enumerate(FLAT, 1)]
    half = {"fp16_forward": True, "dynamic_loss_scale": scaled, "inspection": Inspection(flushed=0.5)}
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


def test_norms_are_single_among_those_after_updates_that_were_too_few_also_with_skipped_ones() -> None:
    norms = [*[math.inf] * 5, *[1.0] * 37, 500.0, *[1.0] * 21, 50.0, *[1.0] * 34]
    lines = [line(i, v, n, skipped=math.isinf(n)) for i, (v, n) in enumerate(zip(FALLING, norms, strict=False), 1)]
    assert told(verdict(lines), "spike").sentence.startswith("after the first 44 updates one gradient norm is far")


@pytest.mark.parametrize("ratios", [[0.5], [0.5, 1.5], [0.2, 0.3, 9.0]])
def test_the_size_of_updates_is_of_those_that_were_measured(ratios: list[float]) -> None:
    stream = MetricStream(Thresholds(), NAMES)
    for i in range(60):
        stream.observe(line(i + 1, 2.0) | ({"update/ratio": ratios[i]} if i < len(ratios) else {}))
    said = told(diagnose(stream), "update_too_large").sentence
    assert ("the one update" if len(ratios) == 1 else f"the {len(ratios)} updates") + " that w" in said
    assert f"{max(ratios):.2g}" in said


def test_the_rate_is_no_cause_of_a_scale_that_fell_before_any_update() -> None:
    """And the numbers of a run without a finite norm hold none."""
    lines = [line(i, 2.0, math.inf) | {"update/skipped": True, "amp/scale": 2.0**-i} for i in range(1, 30)]
    found = verdict(lines, fp16_forward=True, dynamic_loss_scale=True, scale_too_small=True, **FAILED)
    assert told(found, "scale_collapse").causes == ["activations pass fp16's largest number, 65504"]
    some = [line(i, 2.0, 1.0) if i == 7 else one for i, one in enumerate(lines, 1)]
    for first, by_rate in ((math.inf, False), (2.0, True)):  # the forward pass overflows, or the scale was too high
        given = [some[0] | {"train/loss": first}, *some[1:]]
        said = told(verdict(given, dynamic_loss_scale=True, scale_too_small=True, **FAILED), "scale_collapse").causes
        assert any("rate" in cause for cause in said) == by_rate
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
    assert told(verdict([line(1, 1.0, math.nan)], overflow=o, **FAILED), "nan_gradient").causes == ["sqrt at zero"]
    o.derivative = "acos"
    causes = told(verdict([line(1, 1.0, math.nan)], overflow=o, **FAILED), "nan_gradient").causes
    assert causes == ["numbers at which the slope of acos is not finite"], "none that is not what was measured"


@pytest.mark.parametrize("operation", ["relu", "tanh", ""])
def test_an_activation_is_a_cause_of_vanishing_only_where_the_model_has_one(operation: str) -> None:
    seen = Inspection([ActivationOutput("a", "Own", None, None, operation=operation)] if operation else [])
    stream = MetricStream(Thresholds(), NAMES)
    for i, loss in enumerate(FLAT, 1):
        stream.observe(line(i, loss), {"grad/layer": [1.0, 1.0, 1.0, 1e5]})
    causes = told(diagnose(stream, Measurements(inspection=seen)), "vanishing").causes
    assert any("tanh" in c for c in causes) == (operation == "tanh") and "initial weights that are too small" in causes


def test_a_gradient_that_vanishes_in_training_is_not_the_architectures_fault() -> None:
    stream = MetricStream(Thresholds(), NAMES)
    for i, loss in enumerate(FLAT, 1):
        stream.observe(line(i, loss), {"grad/layer": [1.0, 1.0, 1.0, 1.0 if i < 5 else 1e5]})
    causes = told(diagnose(stream), "vanishing").causes
    assert len(causes) == 1 and "the learning rate" in causes[0]


def test_the_largest_update_is_that_of_all_that_were_measured_in_a_long_run() -> None:
    stream = MetricStream(Thresholds(), NAMES)
    for i in range(1, 2001):
        stream.observe(line(i, 2.0) | {"update/ratio": 7.7 if i == 1002 else 0.2})
    found = told(diagnose(stream), "update_too_large")
    assert "7.7 at most" in found.sentence and "the 2000 updates" in found.sentence and found.evidence["largest"] == 7.7


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
    stream = MetricStream(Thresholds(), NAMES)
    for i, loss in enumerate(FLAT, 1):
        stream.observe(line(i, loss), {"grad/layer": [1.0, 1.0, 1.0, 1e5]})
    seen = Inspection(residual=residual, normalised=normalised)
    said = " ".join(told(diagnose(stream, Measurements(inspection=seen)), "vanishing").causes)
    assert ("residual" not in said) == residual and ("normalisation" not in said) == normalised


def test_what_a_run_does_is_not_what_it_lacks() -> None:
    rising = [line(i, 2 + i / 10) | {"lr": 1e-3 * i} for i in range(1, 100)]
    assert told(verdict(rising, clips=True), "diverged").causes == ["the learning rate is too high"]
    for first, causes in ((0.1, 3), (1e-3, 2)):  # a first update of ordinary size needs no warm-up
        constant = [one | {"lr": 1e-3, "update/ratio": first if one is rising[0] else 1e-3} for one in rising]
        assert len(told(verdict(constant), "diverged").causes) == causes - 1, "no norm is out of the usual"
        constant[70]["grad/norm"] = 50.0
        assert len(told(verdict(constant), "diverged").causes) == causes
        constant[70]["grad/norm"] = 2.0
        assert len(told(verdict(constant, second_moments=False), "diverged").causes) == causes - 1, "none to clip"


def test_a_loss_that_is_not_finite_at_the_end_has_not_risen_to_infinity() -> None:
    """Of one that fell without bound the last finite one is told; and of an end that is a number, that."""
    for last in (math.nan, -math.inf, math.inf):
        lines = [*(line(i, 1.0) for i in range(1, 61)), line(61, -1e9, 1e9), line(62, last, math.nan)]
        assert "from 1 to -1e+09, its last finite value" in told(verdict(lines, **FAILED), "exploding").sentence


def test_a_level_at_the_end_is_told_from_the_last_loss() -> None:
    for last, words in ((2e4, "from 1 to 2e+04"), (6e17, "from 1 to 2e+04, the median of the last 20")):
        lines = [line(i, 1.0 if i <= 60 else 2e4) for i in range(1, 101)] + [line(101, last)]
        assert told(verdict(lines), "diverged").sentence.endswith(words)


def test_a_loss_that_falls_without_bound_after_a_noisy_beginning_has_no_floor() -> None:
    losses = [-1.0 - 0.3 * (-1) ** i for i in range(28)] + [-(10.0**i) for i in range(1, 9)]
    norms = [1.0] * 28 + [10.0**i for i in range(1, 9)]
    lines = [line(i, loss, n) for i, (loss, n) in enumerate(zip(losses, norms, strict=True), 1)]
    assert verdict(lines, **FAILED).verdict == "unbounded_loss"


@pytest.mark.parametrize(("ratio", "cause"), [(0.3, "too high"), (1e-5, "too low"), (1e-3, "do not belong")])
def test_the_rate_is_the_first_cause_only_where_updates_show_it(ratio: float, cause: str) -> None:
    lines = [line(i, 2.0) | {"update/ratio": ratio} for i in range(1, 101)]
    assert cause in told(verdict(lines, constant=2.0), "not_learning").causes[0]
    dead = Inspection([ActivationOutput("a", "ReLU", None, 1.0)])
    causes = told(verdict(lines, inspection=dead), "dead_units").causes
    assert (
        ("the learning rate is too high" in causes) == (causes[0] == "the learning rate is too high") == (ratio > 0.1)
    )


def test_the_layer_with_the_most_dead_units_is_named() -> None:
    lines = [line(i, 2.0) for i in range(1, 101)]
    dead = Inspection([ActivationOutput(name, "ReLU", None, share) for name, share in (("a", 0.91), ("b", 1.0))])
    assert told(verdict(lines, inspection=dead, constant=2.0), "dead_units").evidence["module"] == "b"


def test_units_that_are_given_the_same_for_every_sample_are_not_what_is_wrong() -> None:
    lines = [line(i, 2.0) for i in range(1, 101)]
    seen = [ActivationOutput("head.1", "ReLU", None, 0.94, same=True), ActivationOutput("head.3", "ReLU", None, 0.5)]
    found = told(verdict(lines, inspection=Inspection(seen, 160), constant=2.0), "not_learning")
    assert "what goes into head.1 (ReLU) is the same for every one of 160 samples" in found.sentence
    assert found.causes[0].startswith("a mask that is inverted") and found.severity == "critical"


@pytest.mark.parametrize(("weight", "said"), [(1e33, " and weights of at most 1e+33"), (0.5, "")])
def test_an_output_that_overflows_by_weights_that_have_grown_names_them(weight: float, said: str) -> None:
    largest = {"input 1": 6e17, "weight": weight, "result": None}
    ranges = [Range(name, [4], "float32", None, value, value, 0.0) for name, value in largest.items()]
    o = Overflow("forward", "a", "Linear", input_max=6e17, output_max=1e50, limit=3.4e38, ranges=ranges)
    assert str(o).endswith(f"from inputs of at most 6e+17{said}")


@pytest.mark.parametrize(("end", "said"), [(0.92, True), (0.5, False)])
def test_a_loss_that_is_little_better_than_a_constant_answer_is_told_beside_it(end: float, said: bool) -> None:
    found = verdict([line(i, max(2.0 - i / 50, end)) for i in range(1, 121)], constant=1.0)
    assert found.verdict == "healthy" and found.sentence.endswith("; the best constant answer: 1") == said


@pytest.mark.parametrize(("norms", "zero"), [([0.0, 0.0, 0.0], True), ([0.1, 0.0, 0.0], False)])
def test_weights_of_zero_alone_are_why_nothing_of_an_input_gets_any_further(norms: list[float], zero: bool) -> None:
    names = ["a.weight", "a.bias", "b.weight"]
    stream = MetricStream(Thresholds(), names)
    for i in range(1, 101):
        stream.observe(line(i, 2.0), {"grad/layer": [1.0] * 3, "param/norm": norms, "update/norm": norms})
    seen = Inspection([ActivationOutput("relu", "ReLU", None, 0.5, same=True)], 160)
    known = Measurements(header={"names": names, "shapes": [[4, 3], [4], [2, 4]]}, inspection=seen, constant=2.0)
    found = told(diagnose(stream, known), "not_learning")
    assert (found.causes == ["initial weights of zero"]) == zero == ("weights_of_zero" in found.evidence)


def test_layers_that_no_gradient_reaches_do_not_vanish() -> None:
    stream = MetricStream(Thresholds(), NAMES)
    for i, loss in enumerate(FLAT, 1):
        stream.observe(line(i, loss), {"grad/layer": [None, None, 1.0, 1.0]})
    assert {f.code for f in diagnose(stream).findings} & {"vanishing", "broken_graph"} == {"broken_graph"}


@pytest.mark.parametrize("failing", [1, 5])
def test_samples_are_named_only_where_few_of_an_update_fail_by_themselves(failing: int) -> None:
    samples = {1: ranked([Sample(i, math.nan if i < failing else 1.0, 1.0) for i in range(16)])}
    o = Overflow("loss", "", "", operation="log", failure="log of a negative number", outputs=range_of("o", ORDINARY))
    found = told(verdict([line(1, math.nan)], overflow=o, samples_of=lambda _: samples, **FAILED), "nan_loss")
    assert found.evidence["samples"] == ([0] if failing == 1 else [])
    said = "sample 0 is not finite" if failing == 1 else "5 of its 16 samples that were measured are not"
    assert said in found.sentence


@pytest.mark.parametrize(("computed", "cause"), [(1e14, ["a loss scale of 1e+15 that is too large"]), (1e23, [])])
def test_a_gradient_overflows_by_its_loss_scale_only_where_it_would_fit_without(
    computed: float, cause: list[str]
) -> None:
    o = Overflow("backward", "a", "A", operation="mul", derivative="div", output_max=computed, limit=65504.0)
    found = told(verdict([line(1, 1.0, math.nan, scale=1e15)], overflow=o, **FAILED), "nan_gradient")
    assert found.causes == cause, "nor is the sentence said again"
    assert "overflows first, in the derivative of div:" in found.sentence, "and not in its mul"


@pytest.mark.parametrize("flushed", [0.0, 1.0])
@pytest.mark.parametrize("at", [1, 41])
def test_a_gradient_that_fp16_makes_zero_has_no_broken_graph(at: int, flushed: float) -> None:
    lines = [line(i, 2.0, float(i < at)) for i in range(1, 101)]
    causes = told(verdict(lines, inspection=Inspection(flushed=flushed)), "zero_gradient").causes
    assert ("fp16" in causes[0]) == bool(flushed) and (len(causes) == 2) == (at == 1 and not flushed), "it was there"


def test_the_rate_is_no_cause_of_an_overflow_before_any_update() -> None:
    """Nor are the initial weights after some."""
    o = Overflow("forward", "a", "A", output_max=1e5, limit=65504.0)
    for skipped in (True, False):
        found = verdict([line(i, 2.0, 1.0, skipped) for i in range(1, 9)], overflow=o, fp16_forward=True, **FAILED)
        causes = " ".join(told(found, "overflow_fp16").causes)
        assert ("learning rate" in causes) != skipped and ("initial weights" in causes) == skipped


@pytest.mark.parametrize("known", [1, 2, 30])
def test_what_is_usual_of_a_norm_was_seen(known: int) -> None:
    norms = [7.0, 360.0] * 15 if known > 1 else [7.0]
    after = [1e9, 1e10] * 15
    lines = [*(line(i, 1.0, norms[i]) for i in range(known)), *(line(known + i, 1e9, v) for i, v in enumerate(after))]
    said = told(verdict(lines, **FAILED), "exploding").sentence
    assert (f"before, was 1e+09 at update {known}, and reached 1e+10" in said) == (known < 30)
    assert ("the median of the 30 before" in said) == (known == 30)
    assert ("at most 360 in the 2 updates before" in said) == (known == 2)


def test_only_what_towers_is_said_to() -> None:
    quiet = [line(i, 0.03 + 0.001 * (i % 3), 0.22) for i in range(1, 100)]
    quiet[60] |= {"train/loss": 0.42, "grad/norm": 0.12}
    samples = {61: ranked([Sample(i, 30.0 if i == 3 else 0.01, 30.0 if i == 3 else 0.01) for i in range(16)])}
    said = told(verdict(quiet, samples_of=lambda _: samples), "bad_batch").sentence
    assert (
        "loss 0.42 (their median: 0.031)" in said and "gradient norm" not in said.split(";")[0] and "too)" not in said
    )
    for also, others in ((60, ""), (61, "(another one is, too)"), (70, "(2 others are, too)")):
        quiet[also] |= {"train/loss": 0.42, "grad/norm": 50.0}
        assert others in told(verdict(quiet, samples_of=lambda _: samples), "bad_batch").sentence


def test_where_a_loss_went_from_is_not_a_lucky_batch() -> None:
    losses = [0.77, *[1.06, 1.02] * 30, *[0.81, 0.79] * 30]
    said = verdict([line(i, loss) for i, loss in enumerate(losses, 1)]).sentence
    began, end = "the median of the first 20", "the median of the last 20"
    assert said == f"the loss went from 1.04, {began}, to 0.8, {end}; judged by its own beginning"


def test_where_a_loss_went_is_its_end_and_not_its_best() -> None:
    losses = [*[6e-13] * 20, *[2.8e-14] * 40, *[3.1e-14] * 40]
    assert "6e-13 to 3.1e-14" in verdict([line(i, loss, 1e-8) for i, loss in enumerate(losses, 1)]).sentence
    falls = [-(1.3**i) for i in range(60)]
    falls[58] = 1.3 * falls[59]
    lines = [line(i, loss, -loss) for i, loss in enumerate(falls, 1)]
    assert f"to {falls[59]:.3g}," in told(verdict(lines, **FAILED), "unbounded_loss").sentence


@pytest.mark.parametrize(
    ("whole", "rest", "severity"), [(True, 2e-5, "critical"), (True, 6e-4, "info"), (False, 2e-5, "info")]
)
def test_clipping_starves_layers_only_where_it_scales_the_whole_and_they_stand_still(
    whole: bool, rest: float, severity: str
) -> None:
    stream = MetricStream(Thresholds(), NAMES)
    for i in range(100):
        one = line(i + 1, 2.0) | {"clip/coefficient": 1e-3, "update/ratio": 0.5}
        layers = {"grad/layer": [1.0, 1e3, 1.0, 1.0], "update/norm": [rest, 1.0, rest, rest], "param/norm": [1.0] * 4}
        stream.observe(one, layers)
    assert told(diagnose(stream, Measurements(clips=True, clips_whole=whole)), "dominant_layer").severity == severity


@pytest.mark.parametrize("clipped", [600, 599])
def test_all_is_said_of_all_only(clipped: int) -> None:
    lines = [line(i, 2.0) | {"clip/coefficient": 0.01 if i <= clipped else 1.0} for i in range(1, 601)]
    found = told(verdict(lines, clips=True), "overclipped")
    assert found.sentence.startswith("100% of" if clipped == 600 else "99.8% of") and "max_norm" not in found.causes[0]


def test_a_norm_that_has_grown_is_not_far_outside() -> None:
    grown = [*[1.0] * 60, *[2.2] * 19, 6.0, *[2.2] * 10, *[1.0] * 10]
    lines = [line(i, loss, n) for i, (loss, n) in enumerate(zip(FALLING, grown, strict=False), 1)]
    assert all(f.code != "spike" for f in verdict(lines).findings)


def test_a_loss_that_is_broken_by_a_gradient_is_a_matter_of_that_gradient() -> None:
    """An update of a watched loop that was applied with it has broken the weights."""
    lines = [line(1, 2.0, math.nan), *(line(i, math.nan, math.nan) for i in range(2, 40))]
    found = verdict(lines)
    assert (found.verdict, told(found, "nan_gradient").began) == ("nan_gradient", 1)
    assert "the gradient of update 1 is not finite, its loss is" in found.sentence
    assert all(math.isfinite(v) for name, v in found.evidence.items() if name == "loss_best")
    assert verdict([line(1, 2.0), *lines[1:]]).verdict == "nan_loss"


@pytest.mark.parametrize(
    "losses", [[2.0 + i / 10 for i in range(100)], [4.0 - i / 20 if i < 50 else 4.0 for i in range(100)]]
)
def test_a_loss_with_a_term_that_nothing_trains_need_not_have_diverged(losses: list[float]) -> None:
    lines = [line(i, loss) for i, loss in enumerate(losses, 1)]
    assert told(verdict(lines), "diverged").severity == "critical"
    found = told(verdict(lines, cut="the graph of some weights ends at train.py:7"), "diverged")
    assert found.severity == "warning" and "a term of it has risen that nothing trains" in found.sentence
    assert "train.py:7" in found.sentence and "targets" not in found.sentence


def test_no_cause_is_of_an_optimizer_that_is_not_there() -> None:
    losses = [2.0 - i / 2000 for i in range(100)] + [3.5] * 5 + [1.4] * 40
    lines = [line(i, loss) for i, loss in enumerate(losses, 1)]
    for second_moments in (True, False):
        causes = told(verdict(lines, second_moments=second_moments), "loss_spike_recovered").causes
        assert any("Adam" in cause for cause in causes) == second_moments and causes


@pytest.mark.parametrize("moved", [1e-3, 1e-7])
def test_a_rate_that_a_schedule_took_away_was_not_too_low(moved: float) -> None:
    lines = [line(i, 3.0) | {"lr": 0.1 * (i <= 60), "update/ratio": moved * (i <= 60)} for i in range(1, 201)]
    causes = told(verdict(lines, constant=3.0), "stalled").causes
    assert (causes == ["a schedule that takes the learning rate to nothing"]) == (moved > 1e-4)


def test_losses_that_are_nan_to_the_end_are_neither_infinite_nor_too_few() -> None:
    lines = [line(1, 2.0), line(2, 5e9, 1e11), *(line(i, math.nan, math.nan) for i in range(3, 150))]
    assert told(verdict(lines), "exploding").sentence.endswith("the loss went from 2 to NaN or infinity")
    once = [line(1, 2.0), *(line(i, math.nan, 1e11) for i in range(2, 9))]
    assert told(verdict(once, **FAILED), "exploding").sentence.endswith("; the only finite loss was 2")
    unknown = [{k: v for k, v in line(i, 0.0).items() if k != "train/loss"} for i in range(1, 150)]
    reasons = verdict(unknown).unchecked
    assert reasons["diverged"] == "its losses are not known" and "fewer" not in str(reasons)


def test_the_beginning_and_the_end_of_a_loss_are_told_by_one_statistic() -> None:
    """A skewed loss has a median far below its mean, at the beginning as at the end."""
    skewed = [1.0, 1.0, 1.0, 1.0, 6.0] * 100
    assert told(verdict([line(i, loss) for i, loss in enumerate(skewed, 1)]), "not_learning").sentence.startswith(
        "the loss did not improve: 2 to 2"
    )


def test_the_usual_norm_of_the_first_tenth_is_that_of_the_first_tenth() -> None:
    norms = [float(i) for i in range(1, 501)]
    sentence = told(verdict([line(i, 1.0 / i, norm) for i, norm in enumerate(norms, 1)]), "growing_norm").sentence
    assert "its median is 25.5 in the first tenth, and 476 in the last" in sentence
    for slope, ratio, causes in ((0.0, 1e-3, 1), (0.0, 1e-5, 0), (1e-3, 1e-3, 0)):
        lines = [line(i, 1.0 - slope * i, v) | {"update/ratio": ratio} for i, v in enumerate(norms, 1)]
        assert len(told(verdict(lines), "growing_norm").causes) == causes, "no rate is too high and too low"


def test_clipping_that_never_acted_is_said_of_the_updates_that_were_applied() -> None:
    lines = [line(i, loss) for i, loss in enumerate(FALLING, 1)]
    skipped = [line(len(lines) + 1, 1.0, math.inf, True)]
    for given, words in ((lines, "never acted: the largest norm"), (lines + skipped, "in an update that was applied")):
        assert words in told(verdict(given, clips=True), "clip_idle").sentence


def test_gradients_of_exactly_zero_have_no_ratio() -> None:
    stream = MetricStream(Thresholds(), NAMES)
    for i, loss in enumerate(FLAT, 1):
        stream.observe(line(i, loss), {"grad/layer": [0.0] * (len(NAMES) - 1) + [1.0]})
    sentence = told(diagnose(stream), "vanishing").sentence
    assert sentence.startswith("the gradients of the first layer are usually exactly zero") and "inf" not in sentence


@pytest.mark.parametrize("noise", [0.5, 7.0])
def test_noise_is_the_first_cause_where_it_is_larger_than_the_gradients(noise: float) -> None:
    lines = [line(i, loss) for i, loss in enumerate(FLAT, 1)]
    found = told(verdict(lines, constant=FLAT[0], noise=noise), "not_learning")
    assert found.causes[0].startswith("the noise that is added to gradients, with 7 times") == (noise > 1)
    assert ("noise" in found.evidence) == (noise > 1)


@pytest.mark.parametrize(
    ("records", "cut"),
    [
        ([[1.0, 1.0, 0.0, 0.0]] * 100, True),
        ([[1.0, 1.0, 0.0, 0.0]] * 99 + [[1.0, 1.0, 0.1, 0.0]], False),
        ([[1.0, 1.0, 1.0, 0.0]] * 100, False),
        ([[1.0, 1.0, 0.0, 0.0]] * 4 + [None] * 96, False),
    ],
)
def test_a_layer_whose_gradient_is_zero_in_every_record_is_the_first_cause(records: list, cut: bool) -> None:
    stream = MetricStream(Thresholds(), ["b.weight", "b.bias", "a.weight", "a.bias"])
    for i, (loss, norms) in enumerate(zip(FLAT, records, strict=True), 1):
        stream.observe(line(i, loss), norms and {"grad/layer": norms})
    found = told(diagnose(stream, Measurements(constant=FLAT[0])), "not_learning")
    assert (found.causes[0] == "a.weight and a.bias never get a gradient") == cut == ("zero" in found.evidence)


@pytest.mark.parametrize(("norm", "weights", "said"), [(1e9, 8e5, True), (1e9, 80.0, False), (1e3, 8e5, False)])
def test_an_explosion_that_the_loss_survives_is_told_and_no_verdict(norm: float, weights: float, said: bool) -> None:
    lines = [line(i, loss, norm if i == 19 else 1.0) | {"param/norm": 8.0} for i, loss in enumerate(FALLING, 1)]
    found = verdict([*lines[:-1], lines[-1] | {"param/norm": weights}])
    assert found.verdict == "healthy" and ("exploding" in {f.code for f in found.findings}) == said
    if said:
        of = told(found, "exploding")
        assert of.severity == "info" and "reached 1e+09 at update 19, from a median of 1; the norm" in of.sentence
        assert "weights went from 8 to 8e+05" in of.sentence


@pytest.mark.parametrize("samples", [[], [700, 200]])
def test_samples_that_stand_out_are_the_first_cause_of_a_loss_that_rises_again(samples: list[int]) -> None:
    diverged, decayed = (Finding("diverged", "warning", "", None, seen, ["x"]) for seen in ({}, {"weights_last": 0.1}))
    by_samples([Finding("bad_batch", "info", "", 17, {"samples": samples}), diverged, decayed])
    first = ["samples 200, 700 of the training set (see bad_batch)"] if samples else []
    assert diverged.causes == [*first, "x"] and decayed.causes == ["x"]


@pytest.mark.parametrize(("warm", "said"), [(5000, True), (90, False), (1, False)])
def test_a_warm_up_that_outlasts_a_healthy_run_is_told(warm: int, said: bool) -> None:
    lines = [line(i, loss) | {"lr": 0.01 * min(1.0, i / warm)} for i, loss in enumerate(FALLING, 1)]
    found = verdict(lines, rate=0.01)
    assert found.verdict == "healthy" and ("setting" in found.sentence) == said == ("reached 2.0% of" in found.sentence)
    assert "setting" not in verdict(lines).sentence


def test_a_gradient_that_is_zero_from_the_start_without_a_dead_unit_is_cut_off() -> None:
    lines = [line(i, loss, 0.0) for i, loss in enumerate(FLAT, 1)]
    for dead in (0.0, 1.0):
        seen = Inspection([ActivationOutput("a", "ReLU", None, dead, operation="relu")])
        found = told(verdict(lines, inspection=seen), "zero_gradient")
        assert any("died" in cause for cause in found.causes) == bool(dead) == ("cut" not in found.evidence)
        assert any("rounding" in cause for cause in found.causes)


def test_a_loss_that_is_not_finite_in_updates_that_were_applied_says_since_when() -> None:
    ranges = {"outputs": range_of("outputs", ORDINARY), "targets": range_of("targets", ORDINARY)}
    o = Overflow("loss", "", "", operation="log", failure="log of a negative number", **ranges)
    lines = [line(i, math.nan if i > 6 else 2.0) for i in range(1, 193)]
    found = told(verdict(lines, overflow=o), "nan_loss")
    assert found.began == 7 and "186 updates have a loss that is not finite, and were applied" in found.sentence


def test_what_the_verdict_says_is_not_said_again() -> None:
    """Of a loss that rises as the gradient explodes; nor is what ended a run."""
    lines = [line(i, 1.0 if i < 60 else 1e4, 1.0 if i < 60 else 1e6) for i in range(1, 101)]
    found = verdict(lines)
    assert found.verdict == "exploding" and "; the loss went from 1 to 1e+04" in found.sentence
    assert "diverged" in {f.code for f in found.findings} and "diverged" not in {f.code for f in remaining(found)}
    given_up = verdict(lines, "given_up", error="given up: for 9 updates")
    said = summary_lines(given_up, Outcome("given_up", "given up: for 9 updates"), None, None, [], Path(), [])
    assert given_up.verdict != "diverged" and sum("given up" in each for each in said) == 1


def vanishing(ratios: list[float], layers: int = 4) -> Finding | None:
    stream = MetricStream(Thresholds(), NAMES[:layers])
    for i, ratio in enumerate(ratios, 1):
        stream.observe(line(i, 2.0), {"grad/layer": [1.0] * (layers - 1) + [ratio]})
    return next((f for f in diagnose(stream).findings if f.code == "vanishing"), None)


def test_a_gradient_that_came_back_has_not_vanished() -> None:
    assert vanishing([1e5] * 100) and vanishing([*[1e5] * 98, 1.0, 1.0]), "not by two records"
    assert vanishing([*[1e5] * 90, *[1.0] * 10]) is None


def test_two_layers_are_no_chain() -> None:
    found = vanishing([1e5] * 100, layers=2)
    assert found is not None and found.causes == ["initial weights that are too small"]
    assert "of the last layer are usually 1e+05 times those of the first layer" in found.sentence


@pytest.mark.parametrize(("size", "named"), [(0.58, False), (1.0, False), (2.0, True)])
def test_initial_weights_of_ordinary_size_are_not_why_a_gradient_explodes(size: float, named: bool) -> None:
    header = {"names": ["a.weight"], "shapes": [[16, 9]]}
    stream = MetricStream(Thresholds(), ["a.weight"])
    for i in range(1, 70):
        layers = {"grad/layer": [1e3], "param/norm": [4 * size], "update/norm": [1.0]} if i == 1 else None
        ordinary = {"param/norm": 4 * size, "update/ratio": 0.2}
        stream.observe(line(i, 2.0 ** max(1, i - 55), 1e3 * 10.0 ** max(0, i - 60)) | ordinary, layers)
    known = {"header": header, "input_size": 1.0, "constant": 2.1}
    causes = told(diagnose(stream, Measurements("failed", "not finite", **known)), "exploding").causes
    assert any("initial" in cause for cause in causes) == named == causes[0].startswith("the initial weights")
    unknown = told(diagnose(stream, Measurements("failed", "not finite", header=header)), "exploding").causes
    assert not any("inputs" in cause or "targets" in cause for cause in unknown), "they were not measured"


@pytest.mark.parametrize(
    ("early", "recurrent", "grows"), [(1.0, [], False), (1e3, [], True), (1.0, ["rnn"], True)], ids=str
)
def test_a_gradient_is_multiplied_at_layers_only_where_early_ones_get_more(
    early: float, recurrent: list[str], grows: bool
) -> None:
    stream = MetricStream(Thresholds(), NAMES[:2])
    for i in range(1, 70):
        layers = {"grad/layer": [early, 1.0]} if i == 1 else None
        stream.observe(line(i, 2.0 ** max(1, i - 55), 10.0 ** max(0, i - 60)), layers)
    header = {"names": NAMES[:2], "shapes": [[4, 4]] * 2, "recurrent": recurrent}
    causes = told(diagnose(stream, Measurements("failed", "not finite", header=header)), "exploding").causes
    assert any("multiplied" in cause for cause in causes) == grows
    summed = told(
        diagnose(stream, Measurements("failed", "no", header=header, summed=True, second_moments=False)), "exploding"
    )
    assert summed.causes[0] == "the loss is summed over the samples"


@pytest.mark.parametrize("size", [1.0, 50.0, 5e3, math.nan])
def test_targets_are_a_cause_where_they_are_large(size: float) -> None:
    lines = [line(i, 2.0 ** max(1, i - 55), 10.0 ** max(0, i - 60)) for i in range(1, 70)]
    causes = told(verdict(lines, "failed", error="not finite", input_size=1.0, target_size=size), "exploding").causes
    assert causes[0].startswith("targets of wild scale") == (size > 1e3)
    assert any("the targets are too large" in c for c in causes) == (10 < size <= 1e3), "not of a size unknown"


def test_no_finding_says_what_another_says() -> None:
    same, more = (
        Finding("diverged", "critical", "the loss went up"),
        Finding("exploding", "critical", "the norm; the loss went up"),
    )
    said = Diagnosis("bad_batch", "a sample is far off", findings=[more, same])
    assert remaining(said) == [more]
    said.sentence = "the norm; the loss went up"
    assert remaining(said) == []


def test_units_saturate_by_what_may_have_been_large() -> None:
    seen = Inspection([ActivationOutput("a", "Tanh", 0.99, None)])
    for size, ratio, causes in ((50.0, 0.5, 3), (1.0, 0.5, 2), (1.0, 1e-3, 1)):
        lines = [line(i, 2.0) | {"update/ratio": ratio} for i in range(1, 90)]
        assert len(told(verdict(lines, inspection=seen, input_size=size), "saturated_units").causes) == causes


def test_a_median_that_is_told_is_that_of_the_run() -> None:
    """Also of some thousand updates, whose every third norm has another median."""
    norms = [1000.0 / i * (1 + i % 3) for i in range(1, 1501)]
    found = verdict([line(i, 1.0 + 1 / i, norm) for i, norm in enumerate(norms, 1)], inspection=Inspection())
    told_of = told(found, "decaying_norm")
    first, last = (statistics.median(part) for part in (norms[:150], norms[-150:]))
    assert f"its median is {first:.3g} in the first tenth, and {last:.3g} in the last" in told_of.sentence


@pytest.mark.parametrize("dead", [0.5, 1.0])
def test_units_die_where_some_are_dead(dead: float) -> None:
    seen = Inspection([ActivationOutput("a", "ReLU", None, dead)])
    lines = [line(i, 1.0 + 1 / i, 1000.0 / i) for i in range(1, 101)]
    causes = told(verdict(lines, inspection=seen), "decaying_norm").causes
    assert any("die" in cause for cause in causes) == (dead == 1)


@pytest.mark.parametrize("size", [0.14, 0.58])
def test_small_weights_come_before_a_mask_where_nothing_of_the_inputs_arrives(size: float) -> None:
    seen = Inspection([ActivationOutput("", "Net", None, 1.0, operation="relu", call=3, calls=4, same=True)], 160)
    stream = MetricStream(Thresholds(), ["a.weight"])
    for i in range(1, 101):
        stream.observe(line(i, 2.0), {"grad/layer": [1.0], "param/norm": [4 * size], "update/norm": [1e-3]})
    known = Measurements(inspection=seen, constant=2.0, header={"names": ["a.weight"], "shapes": [[16, 9]]})
    found = told(diagnose(stream, known), "not_learning")
    assert "what goes into relu in the model (Net, call 3 of 4) is the same" in found.sentence, "and not into the model"
    assert found.causes[0].startswith("initial weights that are too small") == (size < 0.3)
    assert found.causes[-1].startswith("a mask that is inverted")


@pytest.mark.parametrize(("share", "cause"), [(1.0, "only"), (0.95, "first"), (0.5, "none")])
def test_saturated_units_are_why_a_gradient_vanishes_behind_them(share: float, cause: str) -> None:
    seen = Inspection([ActivationOutput("a", "Tanh", share, None)])
    stream = MetricStream(Thresholds(), NAMES)
    for i, loss in enumerate(FLAT, 1):
        stream.observe(line(i, loss), {"grad/layer": [0.0, 1.0, 1.0, 1.0]})
    causes = told(diagnose(stream, Measurements(inspection=seen)), "vanishing").causes
    first = causes[0].startswith("saturated units")
    assert (first, len(causes) == 1) == {"only": (True, True), "first": (True, False), "none": (False, False)}[cause]


@pytest.mark.parametrize("at_first", [1.0, 1e-4])
def test_initial_weights_do_not_saturate_what_had_a_gradient_at_first(at_first: float) -> None:
    seen = Inspection([ActivationOutput("a", "Tanh", 1.0, None)])
    stream = MetricStream(Thresholds(), NAMES)
    for i, loss in enumerate(FLAT, 1):
        layers = {"grad/layer": [at_first if i == 1 else 1e-4, 1.0, 1.0, 1.0]}
        stream.observe(line(i, loss) | {"update/ratio": 0.5}, layers)
    causes = told(diagnose(stream, Measurements(inspection=seen)), "saturated_units").causes
    assert any("initial weights" in cause for cause in causes) == (at_first < 1)
    assert "the learning rate is too high" in causes


def test_what_comes_and_goes_did_not_begin_when_it_last_came() -> None:
    steady, coming = vanishing([1.0] * 30 + [1e5] * 70), vanishing([1.0] * 20 + [1e5] * 75 + [1.0] * 2 + [1e5] * 3)
    assert steady is not None and steady.began == 31
    assert coming is not None and coming.began is None


def test_a_loss_without_a_floor_explodes_at_any_rate() -> None:
    lines = [line(i, -(1.5**i), 1.5**i) for i in range(1, 90)]
    found = verdict([*lines, line(90, math.nan, math.nan, skipped=True)], **FAILED)
    said = told(found, "unbounded_loss").sentence
    assert f"its median is {statistics.median(1.5**i for i in range(1, 9)):.3g} in the first tenth" in said
    assert told(found, "exploding").causes == ["the loss has no floor (see unbounded_loss)"]
    rising = [line(i, 1.5 ** max(0, i - 60), 1.5 ** max(0, i - 60)) for i in range(1, 90)]
    rest = told(verdict([*rising, line(90, math.nan, math.nan, skipped=True)], **FAILED), "exploding").causes
    assert not any("floor" in cause for cause in rest)


@pytest.mark.parametrize("others", [0.0, 1e-3])
def test_where_all_others_have_no_gradient_no_layer_has_too_much(others: float) -> None:
    stream = MetricStream(Thresholds(), NAMES)
    for i, loss in enumerate(FALLING, 1):
        layers = {"grad/layer": [others] * 3 + [1.0], "update/norm": [others] * 3 + [1e-3], "param/norm": [1.0] * 4}
        stream.observe(line(i, loss) | {"update/ratio": 1e-3}, layers)
    causes = told(diagnose(stream), "dominant_layer").causes
    assert causes[-1].startswith("the others get next to no gradient") and (len(causes) == 1) == (others == 0)


@pytest.mark.parametrize("loss", [2.0, 1e3])
def test_of_what_a_sample_stands_out_is_told(loss: float) -> None:
    samples = ranked([*(Sample(i, 1.0, 1.0) for i in range(20)), Sample(20, loss, 100.0)])
    usual = "1e+03 times the usual loss" if loss > 100 else "100 times the usual gradient norm"
    assert named(samples).endswith(f"stands out, {usual}")


def test_what_the_type_could_hold_does_not_overflow_but_on_its_way() -> None:
    o = Overflow("forward", "a", "LayerNorm", 7e20, 1e13, operation="native_layer_norm", limit=3.4e38)
    assert "the output of a (LayerNorm) is the first that is not finite: at most 1e+13, but a number on" in str(o)
    o.output_max = 1e46
    assert "the output of a (LayerNorm) overflows first: 1e+46" in str(o)


def test_rounded_off_updates_are_told_of_weights_and_over_so_many_updates() -> None:
    lines = [line(i, 2.0 - i / 500) | {"update/ratio": 1e-4} for i in range(1, 202)]
    for one in lines[::50]:
        one |= {"update/lost": 0.9, "update/still": 0.85} if one["attempt"] > 1 else {"update/lost": 0.9}
    said = told(verdict(lines, narrow="bfloat16"), "updates_lost").sentence
    assert "usually 90.0% of the weights whose gradient is not zero stay" in said and "85.0% over 50 updates" in said
    assert "kept in bfloat16," in said
    assert narrow_types([torch.ones(1), torch.ones(1).half(), torch.ones(1).bfloat16()]) == "bfloat16 and float16"


@pytest.mark.parametrize("later", [-9.0, -19.0, -30.0])
def test_a_mean_is_below_the_beginning_only_where_it_is_of_later_losses(later: float) -> None:
    """A few low losses at the beginning pull its mean far below its median; nothing has fallen for that."""
    first = [-33.0] * 5 + [-14.0] * 15
    found = verdict([line(i, loss) for i, loss in enumerate([*first, *[later] * 40, *[-9.0] * 40], 1)])
    assert ("fell from" in found.sentence) == (later == -30.0)


@pytest.mark.parametrize("chain", [True, False])
def test_a_last_layer_that_dominates_may_be_the_end_of_a_chain_that_shrinks(chain: bool) -> None:
    """Then nothing is wrong with it or its loss; where the others get alike, it is the layer."""
    stream = MetricStream(Thresholds(), NAMES)
    norms = [0.005, 0.016, 0.13, 1.0] if chain else [0.13, 0.13, 0.13, 1.0]
    for i, loss in enumerate(FALLING, 1):
        layers = {"grad/layer": norms, "update/norm": [1e-3] * 4, "param/norm": [1.0] * 4}
        stream.observe(line(i, loss) | {"update/ratio": 1e-3}, layers)
    causes = told(diagnose(stream), "dominant_layer").causes
    assert (len(causes) == 1 and "shrink" in causes[0]) if chain else any("scale" in cause for cause in causes)


@pytest.mark.parametrize(
    ("moments", "ratios", "named"),
    [(True, [0.3, 1e-3, 1e-3], False), (True, [1e-3, 0.3, 1e-3, 1e-3, 1e-3], True), (False, [0.3, 1e-3, 1e-3], True)],
)
def test_clipping_makes_no_first_step_of_adam_smaller(moments: bool, ratios: list[float], named: bool) -> None:
    stream = MetricStream(Thresholds(), NAMES)
    for i, loss in enumerate(FALLING):
        norm = 20.0 if i == 0 else 1.0  # which clipping would have cut
        stream.observe(line(i + 1, loss, norm) | ({"update/ratio": ratios[i]} if i < len(ratios) else {}))
    causes = told(diagnose(stream, Measurements(second_moments=moments)), "update_too_large").causes
    assert ("gradients are not clipped" in causes) == named and "the learning rate is too high" in causes
