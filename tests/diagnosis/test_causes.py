"""Causes that what is known of a run rules out, and sentences that hold of one run and not of another."""

import math

import pytest
import torch
from test_rules import FALLING, FLAT, NAMES, line, verdict
from test_rules import run as runs
from test_true_sentences import told

from gradlab.diagnosis.constant_answer import chosen
from gradlab.diagnosis.diagnose import MetricStream, diagnose
from gradlab.diagnosis.inspection import ActivationOutput, Inspection, inspect_model
from gradlab.diagnosis.measurements import Measurements
from gradlab.diagnosis.options import Thresholds
from gradlab.update.loss import CrossEntropy, Loss, MeanSquaredError
from gradlab.update.precision import Precision


@pytest.mark.parametrize(("fall", "said"), [(0.001, "did not improve beyond its noise: 2"), (0.08, "improved by 4.")])
def test_a_loss_improves_only_beyond_its_noise(fall: float, said: str) -> None:
    noisy = [2.0 - fall * (i >= 50) + 0.1 * (-1) ** i for i in range(100)]
    assert f"the loss {said}" in told(verdict([line(i, v) for i, v in enumerate(noisy, 1)]), "not_learning").sentence


def test_a_run_without_an_applied_update_had_nothing_to_learn() -> None:
    lines = [line(i, 2.0, skipped=i % 5 > 0) for i in range(1, 101)]
    assert verdict(lines, constant=2.0).verdict == "not_learning"
    skipped = [one | {"update/skipped": True} for one in lines]
    assert all(f.code != "not_learning" for f in verdict(skipped, constant=2.0).findings)


def test_neither_the_rate_nor_targets_are_a_cause_where_nothing_shows_it() -> None:
    """Targets may not exist where no constant answer is known; and a rate is too high that took the gradient away."""
    lines = [line(i, 2.0) | {"update/ratio": 1e-3} for i in range(1, 101)]
    for constant in (2.0, None):
        causes = told(verdict(lines, constant=constant), "not_learning").causes
        assert any("targets" in c for c in causes) == (constant is not None) and not any("rate" in c for c in causes)
    slow = [one | {"train/loss": 4.0 - i / 300} for i, one in enumerate(lines * 3)]
    assert told(verdict(slow, constant=1.0), "not_learning").causes[0].startswith("the learning rate is too low, or")
    gone = [one | {"grad/norm": 148.0 if i == 16 else 1e-9 if i > 16 else 1.0} for i, one in enumerate(lines, 1)]
    found = told(verdict(gone), "not_learning")
    assert found.causes[0].startswith("the learning rate is too high") and "148 at update 17" not in found.sentence
    assert "the gradient norm was 1.5e+02 at update 16" in found.sentence


@pytest.mark.parametrize("reached", [True, False])
def test_a_gradient_that_was_measured_reaches_the_weights(reached: bool) -> None:
    stream = MetricStream(Thresholds(), NAMES)
    for i, loss in enumerate(FLAT, 1):
        stream.observe(line(i, loss) | {"update/ratio": 1e-8}, {"grad/layer": [1.0, 1.0, 1.0, float(reached)]})
    assert len(told(diagnose(stream), "stalled").causes) == (1 if reached else 2)


def test_no_gradient_norm_is_single_where_usual_ones_are_zero_or_reach_it_later() -> None:
    def spikes(norms: list[float]) -> bool:
        lines = [line(i, loss, n) for i, (loss, n) in enumerate(zip(FALLING, norms, strict=False), 1)]
        return any(f.code == "spike" for f in verdict(lines).findings)

    assert spikes([*[1.0, 1.1] * 25, 50.0, *[1.0, 1.1] * 24])
    assert not spikes([*[0.0] * 50, 50.0, *[0.0] * 48])
    assert not spikes([*[1.0, 1.1] * 25, 50.0, *[40.0, 60.0] * 24]), "the norm has grown"


def test_how_often_a_gradient_is_zero_is_told_and_by_which_weights() -> None:
    lines = [line(i, 2.0, float(i in {1, 65})) for i in range(1, 101)]
    said = told(verdict(lines), "zero_gradient").sentence
    assert "exactly zero in 98 of 100 updates, without a break from update 66 on" in said
    names, shapes = ["a.weight", "a.bias", "b.weight"], [[4, 3], [4], [2, 4]]
    for norms, causes in (([0.0, 0.0, 0.0], 1), ([0.0, 0.0, 1.0], 4), ([1.0, 0.0, 1.0], 3)):
        stream = MetricStream(Thresholds(), names)
        for i in range(1, 61):
            stream.observe(line(i, 2.0, 0.0), {"grad/layer": [0.0] * 3, "param/norm": norms, "update/norm": norms})
        known = Measurements(header={"names": names, "shapes": shapes})
        found = told(diagnose(stream, known), "zero_gradient")
        assert len(found.causes) == causes and ("weights of zero: a.weight" in found.causes[0]) == (causes != 3)


def test_fp16_is_the_cause_of_losses_that_it_cannot_hold() -> None:
    lines = [line(i, math.nan if i in {50, 60} else v, skipped=i in {50, 60}) for i, v in enumerate(FALLING, 1)]
    for half in (True, False):
        causes = told(verdict(lines, fp16_forward=half, dynamic_loss_scale=True), "nan_loss").causes
        assert (len(causes) == 1 and "65504" in causes[0]) == half


@pytest.mark.parametrize("whole", [True, False])
def test_a_batch_of_all_samples_holds_no_outliers_of_its_own(whole: bool) -> None:
    losses = [2.0 - i / 2000 for i in range(100)] + [3.5] * 5 + [1.4] * 40
    lines = [line(i, loss) | {"epoch": i if whole else 1 + i // 2} for i, loss in enumerate(losses, 1)]
    causes = told(verdict(lines), "loss_spike_recovered").causes
    assert ("a batch of outliers" in causes) != whole


def inspected(model: torch.nn.Module, loss: Loss, targets: torch.Tensor) -> Inspection:
    x = torch.linspace(-1, 1, 4 * len(targets)).reshape(len(targets), 4)
    return inspect_model(model.train(), loss, Precision(torch.device("cpu")), [(x, targets)] * 2, [], [])


@pytest.mark.parametrize("number", [2, 8])
def test_batch_norm_over_few_values_is_why_nothing_is_learnt(number: int) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    labels = torch.zeros(number, dtype=torch.long)
    seen = inspected(net, CrossEntropy(), labels)
    before = net[1].running_mean.clone()
    assert seen.batch_norm_samples == number and inspected(net.eval(), CrossEntropy(), labels) is not None
    assert torch.equal(net[1].running_mean, before)
    stuck, learnt = (verdict([line(i, v) for i, v in enumerate(c, 1)], inspection=seen) for c in (FLAT, FALLING))
    found = told(stuck, "not_learning")
    assert ("batch_norm_samples" in found.evidence) == (number == 2) == found.causes[0].startswith("batch norm over 2")
    assert learnt.verdict == "healthy"


@pytest.mark.parametrize("twice", [True, False])
def test_probabilities_are_no_logits(twice: bool) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Softmax(-1) if twice else torch.nn.ReLU())
    seen = inspected(net, CrossEntropy(), torch.zeros(8, dtype=torch.long))
    assert seen.probabilities == twice
    causes = told(verdict([line(i, v) for i, v in enumerate(FLAT, 1)], inspection=seen), "not_learning").causes
    assert (len(causes) == 1 and "probabilities" in causes[0]) == twice


@pytest.mark.parametrize(("after", "size", "named"), [(1.0, 255.0, True), (1.0, 0.9, False), (300.0, 255.0, False)])
def test_targets_beyond_what_the_last_activation_can_return_are_a_cause(after: float, size: float, named: bool) -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x - 9).sigmoid() * after  # saturated at zero

    net = torch.nn.Sequential(torch.nn.Linear(4, 3), Scaled())
    seen = inspected(net, MeanSquaredError(), torch.zeros(8, 3))
    assert seen.output_bound == pytest.approx(after)
    assert inspected(net[:1], MeanSquaredError(), torch.zeros(8, 3)).output_bound == math.inf
    lines = [line(i, v) for i, v in enumerate(FLAT, 1)]
    causes = told(verdict(lines, inspection=seen, target_size=size), "saturated_units").causes
    assert any("beyond what sigmoid can return" in c for c in causes) == named


@pytest.mark.parametrize("died", [True, False])
def test_units_that_died_in_training_did_not_begin_dead(died: bool) -> None:
    stream = MetricStream(Thresholds(), NAMES)
    for i, loss in enumerate(FLAT, 1):
        early = 1.0 if died and i == 1 else 0.0
        stream.observe(line(i, loss) | {"update/ratio": 0.5}, {"grad/layer": [early, early, 1.0, 1.0]})
    seen = Inspection([ActivationOutput("a", "ReLU", None, 1.0)])
    causes = told(diagnose(stream, Measurements(inspection=seen)), "dead_units").causes
    assert any("beginning" in c or "initialisation" in c for c in causes) != died


def test_an_evaluation_needs_no_noise_of_batches() -> None:
    """Evaluations of all samples fall by far more than their own noise; a level of them, or a fall before, does not."""
    noisy = [0.5 - 4.0 * (i >= 20) + 2.6 * (-1) ** (i // 2) for i in range(200)]
    for evals, learnt in (([-1.0, -3.3, -3.3, -3.3], True), ([0.4, 0.4, 0.4], False), ([-3.3, 0.4, 0.4, 0.4], False)):
        stream = MetricStream(Thresholds())
        for i, loss in enumerate(noisy, 1):
            stream.observe(line(i, loss))
        for loss in evals:
            stream.observe({"eval/loss": loss})
        known = Measurements(constant=-1.7, eval_constant=-1.7, constant_found=True)
        assert diagnose(stream, known).learns == learnt


def test_a_constant_answer_that_is_chosen_is_a_measure_of_a_loss_that_fell_towards_it() -> None:
    """Not of one by triplets, to which every constant answer is as good, nor where the model makes its targets."""
    falls = [3.2 - i / 200 for i in range(100)] + [2.7 + i / 1e5 for i in range(400)]
    known = {"constant": 1.8, "constant_found": True}
    assert runs(falls, **known, constant_chosen=True)["not_learning"] == "critical"
    assert "not_learning" not in runs(falls, **known)
    assert "not_learning" not in runs(falls, **known, constant_chosen=True, makes_targets="it does")
    assert "not_learning" not in runs([*FALLING, *FALLING[-1:] * 100], constant=1.8, constant_found=True)
    fast = [3.2 - i / 80 for i in range(100)]
    assert runs(fast, **known, constant_chosen=True).keys() == {"too_short"}, "it is on its way"

    def triplets(y: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        near, far = (y - y.roll(1, 0)).square().sum(-1), (y - y.roll(2, 0)).square().sum(-1)
        return (near - far + 1).relu().sum(), torch.tensor(len(y))

    def absolute(y: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (y - values).abs().sum(), torch.tensor(y.numel())

    like, values = torch.empty(9, 2), torch.randn(9, 2, generator=torch.Generator().manual_seed(1))
    assert not chosen(triplets, like, values, 1.0)
    for shift in (0.0, 1e4):  # standardised, and far from what outputs begin with
        of = values + shift
        assert chosen(absolute, like, of, (of - of.median(0).values).abs().mean().item())


@pytest.mark.parametrize(
    ("scale", "flushed", "lost"), [(1e-5, 0.9, True), (0.1, 0.9, True), (1e-5, 0.0, True), (1e-5, 0.9, False)]
)
def test_a_scale_that_fell_far_below_1_and_stayed_has_collapsed(scale: float, flushed: float, lost: bool) -> None:
    lines = [line(i, 3.0 - i / 50, scale=1.0) for i in range(1, 61)]
    lines += [line(61 + i, 1.8, 1.0, True, scale ** (i / 15)) for i in range(16)]
    lines += [line(77 + i, 3.3 if lost else 1.7, scale=scale) for i in range(80)]
    found = verdict(lines, fp16_forward=True, dynamic_loss_scale=True, inspection=Inspection(flushed=flushed))
    assert (found.verdict == "scale_collapse") == (scale < 1e-3 and flushed > 0.5 and lost)
    if found.verdict == "scale_collapse":
        assert "to 1e-05 by 16 skipped updates, where 90% of the gradient's elements" in found.sentence


def test_what_is_left_of_a_loss_is_of_the_model_that_was_inspected() -> None:
    seen = Inspection([ActivationOutput("a", "ReLU", None, 0.95)])
    stream = MetricStream(Thresholds())
    for i, loss in enumerate(FALLING, 1):
        stream.observe(line(i, 2.0 + loss))
    for loss in (1.6, 2.8):
        stream.observe({"eval/loss": loss})
    known = Measurements(inspection=seen, constant=4.0, eval_constant=4.0)
    assert (
        "70% of the loss of the best constant answer is left in the last evaluation"
        in told(diagnose(stream, known), "dead_units").sentence
    )


def test_a_first_update_that_was_not_measured_says_nothing_of_a_warm_up() -> None:
    for ratio, lacks in ((math.nan, True), (1e-3, False), (0.5, True)):
        ratios = [ratio] + [min(ratio, 1e-3)] * 98  # of NaN it is NaN
        lines = [line(i, 2 + i / 10) | {"lr": 1e-3, "update/ratio": r} for i, r in enumerate(ratios, 1)]
        assert ("there is no warm-up" in told(verdict(lines), "diverged").causes) == lacks, ratio
