"""Causes that what is known of a run rules out, and sentences that hold of one run and not of another."""

import math

import pytest
from test_rules import FALLING, FLAT, NAMES, line, verdict
from test_true_sentences import told

from gradlab.diagnosis.diagnose import MetricStream, diagnose
from gradlab.diagnosis.measurements import Measurements
from gradlab.diagnosis.options import Thresholds


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
