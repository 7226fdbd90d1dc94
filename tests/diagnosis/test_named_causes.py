"""A cause is named where something was measured that makes it one, and a sentence is printed once."""

import math
from typing import Any

import pytest
import torch
from test_rules import FAILED, FALLING, FLAT, NAMES, line, overflow, verdict
from test_true_sentences import told

from gradlab.diagnosis.causes import by_samples
from gradlab.diagnosis.constant_answer import constant_answer
from gradlab.diagnosis.diagnose import MetricStream, diagnose, remaining
from gradlab.diagnosis.finding import Diagnosis, Finding
from gradlab.diagnosis.inspection import ActivationOutput, Inspection
from gradlab.diagnosis.measurements import Measurements
from gradlab.diagnosis.options import Thresholds
from gradlab.diagnosis.replay.overflow import Overflow

HEADER = {"names": ["a.weight"], "shapes": [[16, 9]]}


def test_of_findings_that_say_the_same_one_is_printed() -> None:
    same = [Finding(code, "warning", "it fell") for code in ("a", "b")]
    longer, other = Finding("c", "info", "it fell twice"), Finding("d", "info", "it rose")
    assert remaining(Diagnosis("e", "no", findings=[*same, other])) == [same[0], other]
    assert remaining(Diagnosis("e", "no", findings=[*same, other, longer])) == [other, longer]
    assert remaining(Diagnosis("e", "it fell", findings=[*same, other])) == [other]


@pytest.mark.parametrize("dominant", [True, False])
def test_a_layer_that_has_all_of_the_gradient_is_not_named_where_others_have_vanished(dominant: bool) -> None:
    """It is where they have not, though one of them has most of it."""
    stream = MetricStream(Thresholds(), NAMES)
    early = 0.1 if dominant else 1e-5
    for i, loss in enumerate(FLAT, 1):
        layers = {"grad/layer": [early, early, early, 1.0], "update/norm": [1e-3] * 4, "param/norm": [1.0] * 4}
        stream.observe(line(i, loss) | {"update/ratio": 1e-3}, layers)
    codes = {f.code for f in diagnose(stream, Measurements(constant=2.0)).findings}
    assert ("vanishing" in codes, "dominant_layer" in codes) == (not dominant, dominant)


@pytest.mark.parametrize(
    ("summed", "moments", "named"), [(True, False, True), (True, True, False), (False, False, False)]
)
@pytest.mark.parametrize("code", ["diverged", "update_too_large"])
def test_a_sum_over_samples_is_a_cause_where_updates_are_as_large_as_the_gradient(
    code: str, summed: bool, moments: bool, named: bool
) -> None:
    losses = [1.0 + i for i in range(100)] if code == "diverged" else FLAT
    lines = [line(i, loss) | {"update/ratio": 5.0 if i < 3 else 1e-9} for i, loss in enumerate(losses, 1)]
    causes = told(verdict(lines, summed=summed, second_moments=moments), code).causes
    assert (causes[0] == "the loss is summed over the samples") == named


@pytest.mark.parametrize(("many", "applied", "rate"), [(2, True, True), (8, True, False), (2, False, False)])
def test_the_rate_is_a_cause_of_an_overflow_that_few_batches_have_with_the_initial_weights(
    many: int, applied: bool, rate: bool
) -> None:
    o = Overflow("forward", "a", "Linear", output_max=1e5, limit=65504.0)
    lines = [line(i, 1.0, skipped=not applied or i > 5) for i in range(1, 20)]
    known = {"fp16_forward": True, "overflow": o, "initial_overflows": (many, 8), **FAILED}
    causes = told(verdict(lines, **known), "overflow_fp16").causes
    assert "initial weights" in causes[0] and any("learning rate" in c for c in causes) == rate


@pytest.mark.parametrize(
    ("rounded", "healthy", "of_data"), [("input", None, True), ("input", "b", False), (None, None, False)]
)
def test_inputs_are_the_only_cause_of_what_overflows_before_anything_is_computed(
    rounded: str | None, healthy: str | None, of_data: bool
) -> None:
    o = Overflow("forward", "a", "Linear", output_max=1e6, limit=65504.0, rounded=rounded, healthy=healthy)
    lines = [line(i, math.nan, math.nan, skipped=True) for i in range(1, 20)]
    known = {"fp16_forward": True, "dynamic_loss_scale": True, "scale_too_small": True, "overflow": o}
    found = verdict(lines, initial_overflows=(8, 8), **known, **FAILED)
    for code, causes in (
        ("overflow_fp16", ["inputs that are too large"]),
        ("scale_collapse", ["inputs pass fp16's largest number, 65504"]),
    ):
        assert (told(found, code).causes == causes) == of_data


@pytest.mark.parametrize(
    ("later", "moments", "clipped", "warm"),
    [
        (0.03, True, False, False),
        (0.03, False, True, False),
        (2e-3, True, True, True),
        (2e-3, False, True, True),
    ],
)
def test_neither_clipping_nor_a_warm_up_is_missed_where_all_updates_are_too_large(
    later: float, moments: bool, clipped: bool, warm: bool
) -> None:
    """The step of Adam is of the rate's size, whatever the gradient's is; after a warm-up it would be as large."""
    stream, ratios = MetricStream(Thresholds()), [4.0] + [later] * 7
    for i in range(1, 401):
        ratio = {"update/ratio": ratios[i // 50]} if i % 50 == 1 else {}
        stream.observe(line(i, 4.0 + 4 * (i > 20), 50.0 if i == 300 else 1.0) | ratio)
    found = told(diagnose(stream, Measurements(constant=3.3, second_moments=moments)), "diverged")
    assert ("gradients are not clipped" in found.causes, "there is no warm-up" in found.causes) == (clipped, warm)


def creeping(ratio: float, evaluations: list[float], **known: Any) -> Finding:
    """Of a run that ends 1% below a constant answer."""
    stream = MetricStream(Thresholds())
    for i in range(1, 351):
        stream.observe(line(i, 1.386 - 0.02 * i / 350, 0.5) | {"update/ratio": ratio})
    for value in evaluations:
        stream.observe({"eval/loss": value})
    return told(diagnose(stream, Measurements(constant=1.386, eval_constant=1.38, **known)), "not_learning")


@pytest.mark.parametrize(
    ("evaluations", "slow"),
    [
        ([1.383, 1.381, 1.379, 1.375, 1.371, 1.366], True),
        ([1.383, 1.381, 1.379, 1.375, 1.371, 1.377], False),
        ([1.389, 1.388, 1.387, 1.386, 1.385, 1.384], False),
        ([1.3795, 1.3794, 1.3793, 1.3792, 1.3791, 1.379], False),
        ([1.383, 1.366], False),
    ],
)
@pytest.mark.parametrize("ratio", [2e-4, 8e-5])
def test_targets_are_not_doubted_where_evaluations_follow_the_training_losses(
    ratio: float, evaluations: list[float], slow: bool
) -> None:
    """Below their own constant answer, to the last, and half as far at least; small steps that make a fall say less."""
    found = creeping(ratio, evaluations)
    by_steps = ratio < 1e-4  # and the loss falls from quarter to quarter
    assert any("targets" in cause for cause in found.causes) == (not slow and not by_steps)
    assert ("slow" in found.evidence) == (slow or by_steps) and ("too little yet" in found.sentence) == (
        slow and not by_steps
    )


@pytest.mark.parametrize(
    ("eps", "ratio", "named"), [(1.0, 2e-4, True), (0.01, 2e-4, False), (1.0, 5e-3, False), (0.0, 2e-4, False)]
)
def test_an_eps_above_the_gradients_is_the_cause_of_small_steps(eps: float, ratio: float, named: bool) -> None:
    """Not where the rate makes up for it."""
    found = creeping(ratio, [1.389, 1.388], eps=eps, header={"names": ["a"], "shapes": [[50, 50]]})
    assert any("eps, 100 times" in cause for cause in found.causes) == named == ("eps" in found.evidence)


@pytest.mark.parametrize("decayed", [True, False])
def test_a_norm_that_decays_has_the_cause_that_is_known(decayed: bool) -> None:
    """Of a model that learns, its minimum; of weights that decay took away, this."""
    stream = MetricStream(Thresholds())
    for i in range(1, 401):
        shrunk = 0.98**i
        known = {"param/norm": 5.0 * shrunk, "update/ratio": 0.02} if decayed else {}
        stream.observe(line(i, 2.3 if decayed else 2.3 * shrunk, shrunk) | known)
    decay = (lambda rate, moved, pull: 10.0) if decayed else None
    found = told(diagnose(stream, Measurements(constant=2.3, decay=decay)), "decaying_norm")
    assert found.causes == (
        ["weight decay that has taken the weights away"] if decayed else ["the loss nears its minimum"]
    )


@pytest.mark.parametrize(("size", "causes"), [(1e6, ["the initial weights are too large"]), (0.6, [])])
def test_an_overflow_before_any_update_is_caused_by_what_was_measured_to_be_large(size: float, causes: list) -> None:
    stream = MetricStream(Thresholds(), ["a.weight"])
    layers = {"grad/layer": [math.inf], "param/norm": [4 * size], "update/norm": [0.0]}
    stream.observe(line(1, math.inf, math.inf, skipped=True), layers)
    known = Measurements(header=HEADER, **overflow("loss", operand_max=1e30, operation="pow"))
    found = told(diagnose(stream, known), "nan_forward")
    assert found.causes == causes
    known.overflow = Overflow("forward", "a", "Linear", operation="_softmax", failure="a row without an entry")
    assert told(diagnose(stream, known), "nan_forward").causes == ["a row that is masked throughout"]


def test_a_gradient_of_zero_of_a_loss_that_is_not_finite_is_no_finding() -> None:
    lines = [line(i, 2.0 if i < 60 else math.nan, float(i < 60)) for i in range(1, 101)]
    assert all(f.code != "zero_gradient" for f in verdict(lines).findings)
    assert told(verdict([one | {"train/loss": 2.0} for one in lines]), "zero_gradient")


def test_a_hinge_whose_classes_are_nearly_balanced_has_a_best_constant_answer() -> None:
    """Its slope is small up to a kink, which takes many steps to reach."""

    def hinge(outputs: torch.Tensor, signs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (1 - outputs * signs).clamp(min=0).sum(), torch.tensor(float(len(signs)))

    signs = torch.tensor([1.0] * 195 + [-1.0] * 189)
    assert constant_answer(hinge, torch.empty(1), [signs]) == pytest.approx(1 - 6 / 384, abs=1e-3)


@pytest.mark.parametrize(
    ("end", "chosen", "verdicts"), [(1.3, True, "not_learning"), (1.3, False, "healthy"), (0.5, True, "healthy")]
)
def test_a_loss_that_begins_and_ends_above_a_constant_answer_is_not_learnt(
    end: float, chosen: bool, verdicts: str
) -> None:
    """If that is not the same for all of them, though evaluations fall; then nothing shows that samples are harder."""
    stream, evaluations = MetricStream(Thresholds()), [3.0, 2.5, 2.0, 1.9] if end > 1 else [0.9, 0.8, 0.6, 0.5]
    for i in range(1, 101):
        stream.observe(line(i, 1.0 if i <= 10 else end))
        if i % 25 == 0:
            stream.observe({"eval/loss": evaluations[i // 25 - 1]})
    known = Measurements(constant=0.97, eval_constant=0.97, constant_found=True, constant_chosen=chosen)
    assert diagnose(stream, known).verdict == verdicts


@pytest.mark.parametrize(("constant", "said"), [(None, True), (3.0, False)])
def test_by_what_a_loss_is_judged_is_told_also_where_only_a_term_is_not_learnt(
    constant: float | None, said: bool
) -> None:
    lines = [line(i, loss) | {"train/loss/a": 1.0} for i, loss in enumerate(FALLING, 1)]
    found = told(verdict(lines, constant=constant, constants_of_terms={"a": 1.0}), "unlearnt_term")
    assert ("judged by its own beginning" in found.sentence) == said


@pytest.mark.parametrize(
    ("others", "constant", "learns"), [({}, None, False), ({"b": 1.0}, None, True), ({}, 3.0, True)]
)
def test_a_run_has_not_learnt_whose_terms_have_constant_answers_of_which_none_is_beaten(
    others: dict[str, float], constant: float | None, learns: bool
) -> None:
    falling = [line(i, loss) | {"train/loss/a": 1.0, "train/loss/b": loss} for i, loss in enumerate(FALLING, 1)]
    lines = [one | {"train/loss/b": one["train/loss"] / 2} for one in falling]
    assert verdict(lines, constant=constant, constants_of_terms={"a": 1.0, **others}).learns == learns


def test_inputs_that_were_not_measured_do_not_saturate() -> None:
    flat = Inspection([ActivationOutput("a", "Tanh", 1.0, None, operation="tanh")], 8)
    for size, named in ((math.nan, False), (50.0, True), (1.0, False)):
        causes = told(
            verdict([line(i, 2.0) for i in range(1, 100)], inspection=flat, input_size=size), "saturated_units"
        )
        assert any("inputs" in c for c in causes.causes) == named


@pytest.mark.parametrize(("values", "first"), [(2, True), (32, False), (None, False)])
@pytest.mark.parametrize("code", ["dead_units", "not_learning"])
def test_batch_norm_over_few_values_is_a_cause_of_units_that_die(code: str, values: int | None, first: bool) -> None:
    units = [ActivationOutput("a", "ReLU", None, float(code == "dead_units"), operation="relu")]
    known = {"inspection": Inspection(units, 8, batch_norm_samples=values), "constant": 2.0}
    lines = [line(i, 2.0) | {"update/ratio": 0.5 if i == 1 else 1e-3} for i in range(1, 101)]
    assert told(verdict(lines, **known), code).causes[0].startswith("batch norm over 2") == first


@pytest.mark.parametrize(("began", "named"), [(17, True), (3, False), (None, False)])
def test_samples_are_a_cause_of_an_explosion_that_begins_with_their_update(began: int | None, named: bool) -> None:
    exploding = Finding("exploding", "critical", "", began, {}, ["x"])
    by_samples([Finding("bad_batch", "info", "", 17, {"samples": [9]}), exploding])
    assert exploding.causes == ["sample 9 of the training set (see bad_batch)"] * named + ["x"]


@pytest.mark.parametrize(("eta", "later", "named"), [(60.0, 1e9, True), (2.0, 1e9, False), (60.0, 100.0, False)])
def test_noise_is_compared_with_the_gradients_before_these_grew(eta: float, later: float, named: bool) -> None:
    norms = [3.0 if later > 100 else 100.0] * 20 + [later] * 40
    losses = [1.0] * 20 + [10.0 + i for i in range(40)]
    lines = [line(i, loss, n) for i, (loss, n) in enumerate(zip(losses, norms, strict=True), 1)]
    found = verdict(lines, noise=eta)
    assert any("noise" in c for c in next(f for f in found.findings if f.severity == "critical").causes) == named


@pytest.mark.parametrize(("largest", "first"), [(0.005, "no normalisation"), (0.3, "the learning rate is too high")])
def test_a_rate_took_a_gradient_away_where_updates_were_large(largest: float, first: str) -> None:
    """Else it is what would have carried the gradient through the layers that is missing."""
    stream = MetricStream(Thresholds(), NAMES)
    for i, loss in enumerate(FLAT, 1):
        early = 0.5 if i == 1 else 1e-6
        layers = {"grad/layer": [early, early, early, 1.0], "update/norm": [1e-3] * 4, "param/norm": [1.0] * 4}
        stream.observe(line(i, loss) | {"update/ratio": largest if i == 1 else 1e-3}, layers)
    known = Measurements(constant=2.0, inspection=Inspection(residual=True))
    causes = told(diagnose(stream, known), "vanishing").causes
    assert causes[0].startswith(first) and "at first" in causes[0]


@pytest.mark.parametrize("some", [True, False])
def test_the_rate_is_the_last_cause_where_the_training_data_are_learnt_with_it(some: bool) -> None:
    """Though not by so much that they are learnt by heart."""
    stream = MetricStream(Thresholds())
    for i in range(1, 101):
        loss = 2.0 - some * (0.3 - 0.36 * (-1) ** i) * (i > 20)
        stream.observe(line(i, loss) | {"update/ratio": 0.04})
    for loss in (2.0, 2.01):
        stream.observe({"eval/loss": loss})
    known = Measurements(constant=2.0, eval_constant=2.0, constant_found=True)
    found = told(diagnose(stream, known), "not_learning")
    assert found.causes[-1 if some else 0] == "the learning rate is too high" and "0.04 times" in found.sentence
    assert len(found.causes) > 1


@pytest.mark.parametrize(("end", "told_of"), [(1.5, True), (2.0, False)])
def test_of_losses_below_a_constant_answer_the_evaluation_is_told_that_is_not(end: float, told_of: bool) -> None:
    stream = MetricStream(Thresholds())
    for i in range(1, 81):
        stream.observe(line(i, 2.0 if i < 40 else end))
    stream.observe({"eval/loss": 2.1})
    found = diagnose(stream, Measurements(constant=2.0, eval_constant=2.0))
    assert found.verdict == "too_short" and ("best evaluation is 2.1 (constant: 2)" in found.sentence) == told_of


@pytest.mark.parametrize(("size", "named"), [(0.6, False), (9.0, True), (None, True)])
def test_weights_of_usual_size_are_not_why_a_loss_begins_far_off(size: float | None, named: bool) -> None:
    stream = MetricStream(Thresholds(), ["a.weight"])
    for i in range(1, 201):
        layers = {"grad/layer": [1.0], "param/norm": [4 * size], "update/norm": [1e-3]} if size and i == 1 else None
        stream.observe(line(i, 1000.0 - i), layers)
    causes = told(diagnose(stream, Measurements(constant=1.0, header=HEADER)), "not_learning").causes
    assert len(causes) > 1 and any("initial weights" in c for c in causes) == named
