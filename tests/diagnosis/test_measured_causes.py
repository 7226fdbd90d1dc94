"""A cause is named only where what was measured of the run leaves it."""

import math

import pytest
import torch
from helpers import composed
from test_rules import FAILED, FALLING, FLAT, NAMES, line, verdict
from test_true_sentences import told

from gradlab.config.schema import to_config
from gradlab.diagnosis.diagnose import MetricStream, diagnose
from gradlab.diagnosis.inspection import ActivationOutput, Inspection
from gradlab.diagnosis.measurements import Measurements
from gradlab.diagnosis.options import Thresholds
from gradlab.diagnosis.replay.overflow import Overflow
from gradlab.update.adam import unbounding_betas
from gradlab.update.loss import BinaryCrossEntropy, CrossEntropy, MeanSquaredError

SATURATED = Inspection([ActivationOutput("a", "Tanh", 0.99, None)], 160)
FROM_AFAR = [1000.0 - i for i in range(200)]


@pytest.mark.parametrize(
    ("failure", "operation", "cause"),
    [
        ("0/0", "div", "a denominator that is zero"),
        ("a division by zero", "reciprocal", "a denominator that is zero"),
        ("log of a negative number", "log", "a log or a root of what should be positive"),
        ("a softmax whose entries are all masked", "_softmax", "a row that is masked throughout"),
        ("inf - inf", "sub", None),
    ],
)
def test_the_cause_of_a_forward_pass_that_is_not_finite_is_what_failed(
    failure: str, operation: str, cause: str | None
) -> None:
    o = Overflow("between", "head", "Linear", operation=operation, failure=failure)
    found = told(verdict([line(1, math.nan, math.nan)], overflow=o, **FAILED), "nan_forward")
    assert found.causes == [cause] * (cause is not None)


@pytest.mark.parametrize(
    ("losses", "known", "code"),
    [
        (FROM_AFAR, {}, "not_learning"),
        (FLAT, {}, "saturated_units"),
        (FROM_AFAR, {"input_size": 50.0}, "saturated_units"),  # which may have saturated them
        (FROM_AFAR, {"input_size": 1e5}, "saturated_units"),
        (FROM_AFAR, {"target_size": 500.0, "output": 1.0}, "saturated_units"),
    ],
)
def test_units_that_large_outputs_need_are_not_what_is_wrong(losses: list[float], known: dict, code: str) -> None:
    """Where neither weights, inputs nor the rate may have saturated them, and the loss falls from far off."""
    seen = Inspection(SATURATED.activations, 160, output_bound=known.pop("output", math.inf))
    weights = {"grad/layer": [1.0], "param/norm": [4 * 0.58], "update/norm": [5e-3]}
    stream = MetricStream(Thresholds(), ["a.weight"])
    for i, loss in enumerate(losses, 1):
        stream.observe(line(i, loss) | {"update/ratio": 5e-3}, weights if i == 1 else None)
    header = {"names": ["a.weight"], "shapes": [[16, 16]]}
    found = diagnose(stream, Measurements(constant=1.0, inspection=seen, header=header, **known))
    assert found.verdict == code and told(found, "saturated_units").severity == (
        "info" if code == "not_learning" else "critical"
    )
    if code == "not_learning":
        assert found.findings[0].causes[0].startswith("targets whose mean or size is far from that of the outputs")


@pytest.mark.parametrize(("constant", "named"), [(0.05, True), (1.38, False)])
def test_shares_of_classes_are_not_why_a_loss_is_above_that_of_equal_shares(constant: float, named: bool) -> None:
    """Outputs of zero have the logarithm of the number of classes, which rare classes leave far above a constant's."""
    first = 12 * constant
    stream = MetricStream(Thresholds())
    for i in range(1, 201):
        stream.observe(line(i, first * (1 - i / 1000)))
    stream.observe({"eval/loss": first * 0.8, "eval/accuracy": 0.2})
    found = told(diagnose(stream, Measurements(constant=constant)), "not_learning")
    assert any("shares" in cause for cause in found.causes) == named == bool(found.evidence.get("shares"))
    assert "was falling to the end" in found.sentence and found.causes


@pytest.mark.parametrize(("weights", "learns", "causes"), [(1.3, True, []), (3.0, True, ["the weights grow"])])
def test_a_norm_grows_by_weights_that_have_grown(weights: float, learns: bool, causes: list[str]) -> None:
    stream = MetricStream(Thresholds())
    for i in range(1, 201):
        loss = 2.0 - i / 150 + 0.3 * (i % 2)
        norm = line(i, loss, 1.02**i) | {"param/norm": 1.0 if i < 150 else weights}
        stream.observe(norm)
    found = diagnose(stream)
    assert found.learns == learns and told(found, "growing_norm").causes == causes


@pytest.mark.parametrize(
    ("others", "known", "named"),
    [
        (0.25, {"constant": 2.0}, ["scale"]),
        (1e-3, {"constant": 2.0}, ["scale", "the others"]),
        (0.25, {}, ["scale", "term"]),
        (0.25, {"constant": 2.0, "constant_found": True}, ["scale", "term"]),
    ],
)
def test_a_layer_dominates_by_a_term_only_where_the_loss_may_have_one(
    others: float, known: dict, named: list[str]
) -> None:
    """And others get next to nothing only where they do."""
    stream = MetricStream(Thresholds(), NAMES)
    for i, loss in enumerate(FALLING, 1):
        rest = others / 3**0.5
        layers = {"grad/layer": [rest] * 3 + [1.0], "update/norm": [1e-3] * 4, "param/norm": [1.0] * 4}
        stream.observe(line(i, loss) | {"update/ratio": 1e-3}, layers)
    causes = told(diagnose(stream, Measurements(**known)), "dominant_layer").causes
    assert len(causes) == len(named) and all(word in cause for word, cause in zip(named, causes, strict=True))


def test_where_no_gradient_reaches_the_others_no_layer_dominates() -> None:
    stream = MetricStream(Thresholds(), NAMES)
    for i, loss in enumerate(FLAT, 1):
        layers = {"grad/layer": [None] * 3 + [1.0], "update/norm": [0.0] * 3 + [1e-3], "param/norm": [1.0] * 4}
        stream.observe(line(i, loss) | {"update/ratio": 1e-3}, layers)
    found = diagnose(stream, Measurements(constant=2.0))
    assert found.verdict == "broken_graph" and "dominant_layer" not in {f.code for f in found.findings}


def test_weights_that_lose_updates_are_of_the_type_that_they_have() -> None:
    lines = [line(i, 2.0 - i / 500) | {"update/ratio": 1e-4} for i in range(1, 202)]
    for one in lines[::50]:
        one |= {"update/lost": 0.9, "update/still": 0.85} if one["attempt"] > 1 else {"update/lost": 0.9}
    causes = told(verdict(lines, narrow="bfloat16"), "updates_lost").causes
    assert causes[0].startswith("the weights are in bfloat16, whose next number")


def test_clipping_that_never_acts_is_not_said_to_have_a_limit() -> None:
    """One that clips outliers has none."""
    found = told(verdict([line(i, loss) for i, loss in enumerate(FALLING, 1)], clips=True), "clip_idle")
    assert found.sentence.startswith("clipping never acted") and not found.causes


@pytest.mark.parametrize("size", [1.0, 1e5])
def test_a_limit_of_clipping_is_far_too_low_for_inputs_of_wild_scale(size: float) -> None:
    lines = [line(i, loss, 1e6) | {"clip/coefficient": 1e-6} for i, loss in enumerate(FLAT, 1)]
    found = verdict(lines, clips=True, constant=2.0, input_size=size)
    causes = told(found, "overclipped").causes
    assert found.verdict == "overclipped" and (len(causes) == 2) == (size > 1)
    assert size == 1 or causes[0] == "inputs of wild scale: up to 1e+05 (the median of a batch)", "not of all"


@pytest.mark.parametrize(("betas", "first"), [((0.99, 0.3), "Adam's betas: beta1 (0.99)"), (None, "the learning rate")])
def test_betas_that_leave_a_step_no_bound_are_the_first_cause_of_an_explosion(
    betas: tuple[float, float] | None, first: str
) -> None:
    rising = [line(i, 1.5 ** max(0, i - 60), 1.5 ** max(0, i - 60)) | {"update/ratio": 0.5} for i in range(1, 90)]
    found = verdict([*rising, line(90, math.nan, math.nan, skipped=True)], betas=betas, **FAILED)
    causes = told(found, "exploding").causes
    assert causes[0].startswith(first) and "the learning rate is too high" in causes


@pytest.mark.parametrize(("betas", "unbounded"), [((0.99, 0.3), True), ((0.9, 0.9), False), ((0.0, 0.0), False)])
def test_a_step_has_no_bound_where_squares_are_forgotten_before_gradients(
    betas: tuple[float, float], unbounded: bool
) -> None:
    given = [f"optimizer.beta{i}={beta}" for i, beta in enumerate(betas, 1)]
    assert unbounding_betas(to_config(composed("optimizer=adam", *given)).optimizer) == (betas if unbounded else None)
    lion = to_config(composed("optimizer=lion", "optimizer.beta1=0.99", "optimizer.beta2=0.3"))
    assert unbounding_betas(lion.optimizer) is None, "it has signs in place of squares"


@pytest.mark.parametrize("ratio", [0.5, 23.0])
def test_weights_that_an_update_threw_away_saturate_nothing(ratio: float) -> None:
    lines = [line(i, 2.0) | {"update/ratio": ratio if i == 1 else 0.05} for i in range(1, 90)]
    causes = told(verdict(lines, inspection=SATURATED, input_size=1.0), "saturated_units").causes
    assert "the learning rate is too high" in causes and any("initial" in cause for cause in causes) == (ratio < 1)


@pytest.mark.parametrize(
    ("evaluation", "known", "causes"),
    [(12.0, {}, 1), (2.1, {}, 3), (12.0, {"constant_found": True}, 3), (12.0, {"classes": True}, 3)],
)
def test_evaluations_far_above_those_of_answers_to_other_inputs_are_of_other_data(
    evaluation: float, known: dict, causes: int
) -> None:
    """Of values; of classes a few answers that are far too sure have any loss."""
    more = {"eval/accuracy": 0.1} if known.pop("classes", False) else {}
    stream = MetricStream(Thresholds())
    for i in range(1, 201):
        stream.observe(line(i, 2.0 / (1 + i / 10)))
        if i % 40 == 0:
            stream.observe({"eval/loss": evaluation + i / 1000} | more)
    found = told(diagnose(stream, Measurements(constant=1.0, eval_constant=1.1, **known)), "memorising")
    assert len(found.causes) == causes and found.causes[-1].startswith("evaluation data that are unlike")


@pytest.mark.parametrize("noise", [0.5, 60.0])
def test_units_may_die_by_noise_that_is_larger_than_gradients(noise: float) -> None:
    seen = Inspection([ActivationOutput("a", "ReLU", None, 1.0, operation="relu")], 160)
    lines = [line(i, 2.0, {1: 10.0}.get(i, 99.0 if i < 20 else 0.1)) | {"update/ratio": 0.05} for i in range(1, 90)]
    found = told(verdict(lines, inspection=seen, noise=noise), "dead_units")
    assert found.causes[0].startswith("the noise that is added to gradients") == (noise > 10)
    assert bool(found.evidence.get("noise")) == (noise > 10) and len(found.causes) > 1


@pytest.mark.parametrize(
    ("evaluation", "ratio", "named"), [(1.99, 1e-3, True), (2.14, 1e-3, False), (1.99, 0.05, False)]
)
def test_what_only_training_does_is_a_cause_where_its_losses_are_far_above_evaluations(
    evaluation: float, ratio: float, named: bool
) -> None:
    """Not of large updates, after each of which the model is another."""
    stream = MetricStream(Thresholds())
    for i in range(1, 201):
        stream.observe(line(i, 2.15 + 0.01 * (-1) ** i) | {"update/ratio": ratio})
        if i % 50 == 0:
            stream.observe({"eval/loss": evaluation})
    found = told(diagnose(stream, Measurements(constant=2.0, eval_constant=2.0)), "not_learning")
    assert any("as dropout" in cause for cause in found.causes) == named == bool(found.evidence.get("training"))


@pytest.mark.parametrize("applied", [True, False])
def test_the_weights_of_a_run_without_an_update_are_the_initial_ones(applied: bool) -> None:
    o = Overflow("forward", "a", "Linear", output_max=1e5, limit=65504.0)
    lines = [line(i, math.inf, math.inf, skipped=not (applied and i == 1)) for i in range(1, 4)]
    known = {"overflow": o, "initial_overflows": (8, 8), "fp16_forward": True, "dynamic_loss_scale": True}
    said = told(verdict(lines, **known, **FAILED), "overflow_fp16").sentence
    assert said.endswith("8 of 8 micro-batches overflow" + ", too" * applied)


@pytest.mark.parametrize(("end", "learnt"), [(1.3853, True), (1.38625, False)])
def test_a_loss_that_cannot_fall_far_is_learnt_by_part_of_the_way(end: float, learnt: bool) -> None:
    """Of labels that are smoothed by 0.97, 5% of a constant answer's loss cannot be reached by any model."""
    loss = CrossEntropy(label_smoothing=0.97)
    loss.classes = 4
    floor = loss.floor(lambda: ())
    assert floor == pytest.approx(1.3849, abs=1e-4)
    stream = MetricStream(Thresholds())
    for i in range(1, 201):
        stream.observe(line(i, 1.3863 if i < 60 else end + 0.002 * (-1) ** i))
        if i % 50 == 0:
            stream.observe({"eval/loss": end, "eval/accuracy": 0.8})
    found = diagnose(stream, Measurements(constant=1.3863, eval_constant=1.3863, floor=floor))
    assert (found.verdict == "healthy") == learnt == found.learns
    assert diagnose(stream, Measurements(constant=1.3863, eval_constant=1.3863)).verdict == "not_learning"


def test_the_lowest_loss_of_targets_that_are_shares_is_their_entropy() -> None:
    labels, shares = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.5], [0.5]])
    assert BinaryCrossEntropy().floor(lambda: [labels]) == 0
    assert BinaryCrossEntropy().floor(lambda: [shares]) == pytest.approx(math.log(2))
    assert CrossEntropy().floor(lambda: ()) == 0 == MeanSquaredError().floor(lambda: [shares])
