"""Causes of a run that does not learn, or not what holds for others, beside runs that exclude them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_rules import line
from test_true_sentences import told

from gradlab.diagnosis.diagnose import MetricStream, diagnose
from gradlab.diagnosis.finding import Diagnosis
from gradlab.diagnosis.inspection import ActivationOutput, Inspection, inspect_model
from gradlab.diagnosis.measurements import Measurements
from gradlab.diagnosis.options import Thresholds
from gradlab.diagnosis.rules.not_learning import FEW, PAIRS, RUNNING, SLOW, TARGETS, UNLIKE
from gradlab.remedies.evidence import Evidence
from gradlab.remedies.learning_rate import excesses
from gradlab.update.loss import CrossEntropy
from gradlab.update.precision import Precision


def of(losses: Sequence[float], evals: Sequence[float], epochs: int = 1, **known: Any) -> Diagnosis:
    stream = MetricStream(Thresholds(), ["a.weight"])
    each = len(losses) // max(len(evals), 1)
    for i, loss in enumerate(losses, 1):
        epoch = min((i - 1) * epochs // len(losses) + 1, epochs)
        stream.observe(line(i, loss) | {"update/ratio": 2e-3, "epoch": epoch}, {"grad/layer": [1.0]})
        if i % each == 0:
            stream.observe({"eval/loss": evals[i // each - 1]})
    return diagnose(stream, Measurements(constant=1.0, eval_constant=1.0, **known))


def noisy(level: float, spread: float = 0.01) -> list[float]:
    return [level + spread * (-1) ** i for i in range(200)]


@pytest.mark.parametrize(("level", "named"), [(1.0, True), (2.2, False)])
def test_targets_are_no_cause_of_a_loss_that_misses_even_a_constant_answer(level: float, named: bool) -> None:
    found = told(of(noisy(level), [level] * 4), "not_learning")
    assert (TARGETS in found.causes) == named
    assert found.sentence.endswith("none of what was measured says why") and "reach the weights" not in str(found)


@pytest.mark.parametrize(("evals", "named"), [([0.99, 0.965, 0.96, 0.961], False), ([0.99, 0.965, 0.99, 0.98], True)])
def test_evaluations_that_are_below_a_constant_answer_tell_that_targets_belong(evals: list[float], named: bool) -> None:
    """By less than counts as learnt: there may be no more to learn."""
    found = told(of(noisy(0.98, 0.1), evals), "not_learning")
    assert (TARGETS in found.causes) == named


@pytest.mark.parametrize(("evals", "slow"), [([9.0, 8.9, 8.8, 8.7, 8.6], True), ([9.0, 8.9, 8.95, 8.7, 8.8], False)])
def test_evaluations_that_fall_to_the_last_show_a_loss_that_falls_under_its_noise(
    evals: list[float], slow: bool
) -> None:
    found = told(of(noisy(9.0, 1.0), evals), "not_learning")
    assert (SLOW in found.causes) == slow == bool(found.evidence.get("slow"))


@pytest.mark.parametrize(
    ("evals", "verdict"),
    [
        ([4.5, 2.5, 1.5, 1.2, 1.07], "too_short"),
        ([1.3, 1.2, 1.15, 1.14, 1.135], "not_learning"),
        ([1.1, 1.07, 1.04, 1.01, 0.98], "too_short"),
    ],
)
def test_a_run_is_too_short_by_the_evaluations_that_judge_it(evals: list[float], verdict: str) -> None:
    """They get below a constant answer at the fall of the last, in as many again; the batches' noise hides it."""
    assert of(noisy(1.1, 0.3), evals).verdict == verdict


@pytest.mark.parametrize(("last", "verdict"), [(2.0, "too_short"), (2.9, "not_learning")])
def test_a_loss_whose_evaluation_has_just_risen_is_not_on_its_way(last: float, verdict: str) -> None:
    assert of([5.0 - 3.0 * i / 200 for i in range(200)], [4.0, 3.0, 2.6, last]).verdict == verdict


@pytest.mark.parametrize("part", [0.97, 0.5])
def test_dropout_is_a_cause_where_it_takes_more_than_half(part: float) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(part), torch.nn.Linear(8, 3))
    batch = (torch.randn(6, 4), torch.zeros(6, dtype=torch.long))
    rest = (CrossEntropy(), Precision(torch.device("cpu")), [batch], [], ["0", "2"])
    seen = inspect_model(net.train(), *rest)
    assert seen.dropout == ("1", part)
    found = told(of(noisy(1.0), [1.0] * 4, inspection=seen), "not_learning")
    assert (found.causes[0] == "1 drops 97% of what goes in") == (part > 0.5) == bool(found.evidence.get("dropout"))
    assert (
        inspect_model(net.eval(), CrossEntropy(), Precision(torch.device("cpu")), [batch], [], ["0", "2"]).dropout
        is None
    )


@pytest.mark.parametrize("bound", [1.0, 10.0])
def test_targets_beyond_what_the_model_can_return_are_the_cause(bound: float) -> None:
    seen = Inspection([ActivationOutput("", "Net", 0.3, None, operation="sigmoid")], 160, output_bound=bound)
    found = told(of(noisy(2.2), [2.2] * 4, inspection=seen, target_size=4.9), "not_learning")
    assert (found.causes == ["targets of up to 4.9 (the median of a batch), beyond what sigmoid can return"]) == (
        bound < 4.9
    )


FITS = [max(0.1, 1.2 - i / 40) for i in range(200)]


@pytest.mark.parametrize(
    ("losses", "evals", "epochs", "causes"),
    [
        (FITS, [1.5, 1.4, 1.6, 1.7, 1.8], 5, [UNLIKE]),  # better before any sample came again
        ([1.2] * 40 + FITS[40:], [1.5, 1.4, 1.6, 1.7, 1.8], 5, [PAIRS, FEW, UNLIKE]),
        ([1.2] * 40 + FITS[40:], [1.5, 1.45, 1.42, 1.41, 1.4], 5, [UNLIKE, FEW]),  # what is learnt helps them
        (FITS, [1.5, 1.4, 1.6, 1.7, 1.8], 1, [PAIRS, FEW, UNLIKE]),  # no epoch is known to have ended
    ],
)
def test_nothing_is_memorised_by_a_model_that_answers_what_it_has_not_seen(
    losses: list[float], evals: list[float], epochs: int, causes: list[str]
) -> None:
    found = told(of(losses, evals, epochs), "memorising")
    assert found.causes == causes
    assert ("unseen" in found.evidence) == (causes == [UNLIKE])


@pytest.mark.parametrize("values", [8, None])
def test_batch_norm_may_be_why_evaluations_differ(values: int | None) -> None:
    found = told(of(FITS, [1.5, 1.4, 1.6, 1.7, 1.8], 5, inspection=Inspection(batch_norm_samples=values)), "memorising")
    assert found.causes == [*[RUNNING] * (values is not None), UNLIKE]


@pytest.mark.parametrize(("bound", "cause"), [(False, "gradients are not clipped"), (True, "the bound of clipping is")])
def test_a_bound_that_never_acts_is_a_cause_like_none(bound: bool, cause: str) -> None:
    stream = MetricStream(Thresholds())
    for i in range(1, 201):
        norm = 60.0 if i > 120 else 1.0
        one = line(i, 2.0 - i / 100 if i < 100 else 4.0 + 0.01 * (-1) ** i, norm) | {"update/ratio": 2e-3}
        stream.observe(one | {"clip/coefficient": 0.5 if i == 1 else 1.0})
    causes = told(diagnose(stream, Measurements(clips=bound, second_moments=False)), "diverged").causes
    assert any(each.startswith(cause) for each in causes)


def test_an_update_after_which_a_run_learnt_is_not_why_it_lost_that_again() -> None:
    e = Evidence("diverged", {"diverged": {"best": 0.1}}, ratios=[0.22, *[2e-3] * 5])
    assert excesses(e) == (pytest.approx(2.0), pytest.approx(0.2))
    assert excesses(replace(e, found={"diverged": {}}))[1] == pytest.approx(22.0)
