"""The best constant answer to a loss that is only a function: what minimising it finds, and what that is good for."""

import math
import random
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from helpers import composed
from test_batches import NET, Regression
from test_rules import FALLING, FLAT, run

from gradlab.base.distributed import World
from gradlab.config.schema import to_config
from gradlab.diagnosis.constant_answer import constant_answer, depends
from gradlab.runs.job import Job
from gradlab.update.loss import CrossEntropy, MeanSquaredError


def targets(values: bool) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    made = torch.randn(4, 16, 1, generator=draw) + 300 if values else torch.randint(3, (4, 16), generator=draw)
    return list(made)


@pytest.mark.parametrize(("loss", "shape"), [(MeanSquaredError(), (1,)), (CrossEntropy(), (3,))])
def test_it_is_what_is_known_of_losses_that_are_known(loss, shape) -> None:  # type: ignore[no-untyped-def]
    batches = targets(loss.__class__ is MeanSquaredError)
    assert constant_answer(loss, torch.empty(1, *shape), batches) == pytest.approx(loss.constant(batches), rel=1e-3)


def test_its_loss_is_that_of_all_samples_though_it_is_sought_on_some() -> None:
    like, batches = torch.empty(1, 1), targets(True)
    some, of_all = (constant_answer(MeanSquaredError(), like, batches[:2], rest) for rest in ([], batches[2:]))
    found = torch.cat(batches[:2]).mean()
    assert of_all == pytest.approx((torch.cat(batches) - found).square().mean().item(), rel=1e-3) != some


@pytest.mark.parametrize("rest", [0.1, 5.0])
def test_what_is_best_for_some_samples_is_not_worse_for_all_than_no_answer(rest: float) -> None:
    """Of a relative error, samples near zero have most of the loss, and answers to others are far from them."""

    def relative(outputs: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return ((outputs - values) / values).square().sum(), torch.tensor(len(values))

    some, others = torch.full((8, 1), 5.0), torch.full((8, 1), rest)
    best = constant_answer(relative, torch.empty(1, 1), [some], [others])
    assert best == pytest.approx(1.0 if rest < 5 else 0.0, abs=0.2)


def test_it_is_found_where_the_loss_has_a_kink() -> None:
    """Its slope is no smaller there than elsewhere."""

    def absolute(outputs: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (outputs - values).abs().sum(), torch.tensor(len(values))

    values = torch.tensor([0.0, 1.0, 5.0]).repeat(1, 8).T
    assert constant_answer(absolute, torch.empty(1, 1), [values]) == pytest.approx(5 / 3, rel=1e-2)


def test_it_is_looked_for_where_a_shipped_loss_is_a_formula(tmp_path: Path) -> None:
    config = to_config(composed(*NET[1:], "loss=unstable", "loss.kind=sqrt", "loss.stable=true", "trainer.epochs=1"))
    config.data = Regression(16)
    job = Job(config, {}, tmp_path, [], "run", World())
    job.run()
    values = job.trainer.data.test.targets
    spread = (values - values.median()).abs().mean().item()  # of an absolute error the median is the best answer
    assert job.constants("test")[0] == pytest.approx(spread, rel=0.02)


def test_a_loss_without_a_floor_or_a_gradient_has_none() -> None:
    def negated(outputs: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return -F.cross_entropy(outputs, labels, reduction="sum"), torch.tensor(len(labels))

    def counted(outputs: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (outputs.argmax(-1) != labels).sum(), torch.tensor(len(labels))

    assert constant_answer(negated, torch.empty(1, 3), targets(False)) is None
    assert constant_answer(counted, torch.empty(1, 3), targets(False)) is None


def test_of_a_loss_whose_zero_means_nothing_noise_is_the_measure() -> None:
    """One of 50 and more: 1 less is 2%, and all that there was to learn."""
    learnt = [50.0 + loss - 1.0 for loss in FALLING]
    assert run(learnt, constant=51.0, constant_found=True).keys().isdisjoint({"not_learning", "stalled"})
    level = [50.0 + max(loss, 1.5) + 0.05 * (-1) ** i for i, loss in enumerate(FALLING)]
    assert run(level, constant=51.5, constant_found=True)["not_learning"] == "critical"
    assert run(level, constant=51.6, constant_found=True).keys().isdisjoint({"not_learning"}), "beyond its noise"


def test_what_targets_add_to_a_loss_is_no_noise_of_its_evaluations() -> None:
    """As counts do: batches differ by more than there is to learn, and all evaluations are of the same samples."""
    noisy = [-4.0 + 3.0 * math.exp(-i / 20) + 2.6 * (-1) ** (i // 2) for i in range(192)]
    evals = [-3.60, -3.68, -3.66, -3.71, -3.68, -3.70]
    assert "not_learning" not in run(noisy, constant=-1.75, eval_constant=-2.1, constant_found=True, evals=evals)
    found = run(noisy, constant=-1.75, eval_constant=-3.68, constant_found=True, evals=evals)
    assert "not_learning" in found


def test_a_beginning_beside_the_constant_answer_is_no_fall_of_which_a_part_counts() -> None:
    """It is within what batches differ by: evaluations that are half a percent better have learnt nothing."""
    level = [3.7 + (-1) ** i for i in range(192)]
    evals = [3.31, 3.244, 3.243, 3.241, 3.239, 3.24]
    found = run(level, constant=3.7, eval_constant=3.256, constant_found=True, evals=evals)
    assert found["not_learning"] == "critical"


def test_a_loss_of_which_a_constant_answer_is_the_best_is_not_judged_by_it() -> None:
    """As of consistency between two views: all outputs the same make it zero, and are no use."""
    assert "not_learning" not in run(FALLING, constant=0.0, constant_found=True)
    thrown = [168.0, 3.0, *[0.69] * 100]
    assert run(thrown, constant=0.68, constant_found=True)["not_learning"] == "critical", "wild outputs at first"
    solved = [0.5 * 0.8**i + 0.01 * (i % 5 == 0) for i in range(100)]  # a margin that few triplets still miss
    assert "not_learning" not in run(solved, constant=0.0, constant_found=True)


def test_a_fall_from_outputs_of_wild_scale_is_no_measure_of_what_there_was_to_learn() -> None:
    """From 9 to a fifth below the constant answer: its first half is the scale of the outputs."""
    thrown = [9.0 * 0.95**i + 0.48 + 0.02 * (-1) ** i for i in range(200)]
    assert "not_learning" not in run(thrown, constant=0.6, constant_found=True, evals=[0.7, 0.5])


def test_a_loss_far_above_that_of_the_untrained_model_diverged_however_early() -> None:
    thrown = [2.5, 90.0, *(60 + 10 * math.sin(i) for i in range(98))]
    assert run(thrown, constant=2.1, constant_found=True)["diverged"] == "critical"
    assert "diverged" not in run(thrown, constant=60.0, constant_found=True), "it is as good as a constant answer"


def test_a_fall_within_its_noise_is_no_learning() -> None:
    """From below the constant answer, since the first weights happened to do better."""
    for seed in range(4):
        draw = random.Random(seed)
        noisy = [0.682 - 1e-6 * i + draw.gauss(0, 0.01) for i in range(400)]
        found = run(noisy, coefficients=[1e-4] * 400, clips=True, constant=0.69, constant_found=True)
        assert found["overclipped"] == "critical"


def test_a_run_that_ends_in_losses_that_are_not_finite_is_judged_all_the_same() -> None:
    """Applied, since their gradients are finite: there is no loss at its end to compare with."""
    ended = [*FALLING[:50], *[math.nan] * 150]
    assert run(ended, constant=1.0, constant_found=True)["nan_loss"] == "critical"


def test_terms_have_constant_answers_of_their_own_where_targets_are_asked_for() -> None:
    def fit(outputs: tuple[torch.Tensor, torch.Tensor], values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (outputs[0] - values).square().sum(), torch.tensor(len(values))

    def size(outputs: tuple[torch.Tensor, torch.Tensor], values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return outputs[1].square().sum(), torch.tensor(len(values))

    batches = targets(True)
    like = torch.empty(16, 1), torch.empty(16, 3)
    assert constant_answer(fit, like, batches) == pytest.approx(
        torch.cat(batches).var(0, correction=0).item(), rel=1e-3
    )
    assert depends(fit, like, batches[0]) and not depends(size, like, batches[0])


def test_a_term_is_not_learnt_only_where_the_rest_is_and_it_does_not_fall() -> None:
    flat, told = {"terms": {"b": FLAT}, "constants_of_terms": {"b": 2.0}}, "unlearnt_term"
    assert told not in run(FLAT, **flat) and told not in run(FALLING[:99], **{"terms": {"b": FLAT[:99]}})
    falls = {"terms": {"b": [9.0 - i / 20 for i in range(100)]}, "constants_of_terms": {"b": 2.0}}
    assert told not in run(FALLING, **falls), "it is on its way"
    assert told not in run(FALLING, terms={"kl": [i / 100 for i in range(100)]}), "that asks for no targets"
