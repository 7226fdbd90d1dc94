"""Each condition of the rules over layers, fp16, clipping and numbers that are not finite, where it alone decides."""

import math
from typing import Any

import pytest
import torch
from test_rules import DEAD_AT_END, FAILED, FALLING, FLAT, NAMES, line, overflow, run, seen, spike, verdict

from gradlab.diagnosis.diagnose import MetricStream, diagnose, remaining
from gradlab.diagnosis.finding import Diagnosis, Finding
from gradlab.diagnosis.inspection import ActivationOutput, Inspection
from gradlab.diagnosis.measurements import Measurements
from gradlab.diagnosis.options import Thresholds
from gradlab.diagnosis.replay.overflow import Overflow
from gradlab.diagnosis.replay.ranges import range_of

STEEP, EVEN = [1.0, 1.0, 1.0, 1001.0], [1.0] * 4
MODERATE = range_of("outputs", torch.tensor([-9e3, 9e3]))


def recorded(
    records: list[list[float] | None], losses: list[float] = FLAT, names: list[str] = NAMES, **rest
) -> Diagnosis:
    """Of a run of these records of layers, one an update; None: none was made."""
    stream = MetricStream(Thresholds(), names)
    for i, record in enumerate(records):
        one = line(i + 1, losses[i]) | {"clip/coefficient": 0.01}
        if record is None:
            stream.observe(one)
            continue
        moved = [1e-4 * norm for norm in EVEN[: len(record)]]
        layers: dict[str, Any] = {"grad/layer": record, "update/norm": moved, "param/norm": EVEN[: len(record)]}
        stream.observe(one | {"update/ratio": 1e-4}, layers)
    return diagnose(stream, Measurements(**rest))


def one(found: Diagnosis, code: str) -> Finding | None:
    return next((f for f in found.findings if f.code == code), None)


def test_a_dead_layer_is_not_vanishing() -> None:
    cut = [0.0, 1.0, 1.0, 1.0]
    assert "vanishing" in run(FLAT, layers=cut) and "vanishing" in run(FLAT, layers=cut, inspection=seen(dead=0.99))
    assert "vanishing" in run(FLAT, layers=cut, inspection=seen())
    assert "vanishing" not in run(FLAT, layers=cut, inspection=seen(dead=1.0))
    assert "vanishing" in run(FLAT, layers=STEEP, inspection=seen(dead=1.0)), "something comes through"


def test_what_fp16_flushes_to_zero_is_not_vanishing() -> None:
    cut = [0.0, 1.0, 1.0, 1.0]
    assert "vanishing" not in run(FLAT, layers=cut, inspection=Inspection(layer_ratio=999.0))
    assert "vanishing" in run(FLAT, layers=cut, inspection=Inspection(layer_ratio=1001.0))
    assert "vanishing" not in run(FLAT, layers=EVEN, inspection=Inspection(layer_ratio=1001.0)), (
        "it is the run that is judged"
    )


def test_vanishing_is_of_weights_that_move_in_a_run_that_did_not_fail() -> None:
    assert "vanishing" in run(FLAT, layers=STEEP, moved=[1e-4] * 4)
    assert "vanishing" not in run(FLAT, layers=STEEP, moved=[1e-7] * 4) and "vanishing" not in run(
        FLAT, layers=STEEP, **FAILED
    )


def test_vanishing_uses_finite_norms_and_has_a_beginning() -> None:
    broken = [math.inf, 1.0, 1.0, 1.0]
    found = one(recorded([broken, broken, STEEP] * 33), "vanishing")
    assert found is not None and found.evidence["late_to_early_ratio"] == 1001.0
    for records, began in (([EVEN] * 30 + [STEEP] * 70, 31), ([STEEP] * 20 + [EVEN] * 10 + [STEEP] * 70, 31)):
        found = one(recorded(records), "vanishing")
        assert found is not None and found.began == began
    assert one(recorded([STEEP] * 40 + [EVEN] * 60), "vanishing") is None


def test_norms_whose_squares_leave_the_range_of_float64_are_observed() -> None:
    """As of a float64 model that explodes; one a layer, and two."""
    for names in (NAMES, ["a.w", "b.w", "c.w", "c.b"]):
        found = recorded([[1e200, 2e190, 1e200, 1e200], [1e200, 2e200, 1e200, 1e202]] * 50, names=names)
        assert "layers" not in found.unchecked and one(found, "vanishing") is None
        dominant = one(found, "dominant_layer")
        assert dominant is None or dominant.evidence["part"] <= 1.0
    found = recorded([[1e200, 1e199, 1e199, 1e199]] * 100)
    dominant = one(found, "dominant_layer")
    assert dominant is not None and math.isclose(dominant.evidence["part"], 1 / 1.03)


def test_vanishing_over_time_is_of_the_whole_run() -> None:
    stream = MetricStream(Thresholds(), NAMES)
    for i in range(100):
        stream.observe(line(i, 2.0), {"grad/layer": EVEN, "time/ratio": [1e6 if i >= 90 else 2.0]})
    assert "vanishing" not in {f.code for f in diagnose(stream).findings}


@pytest.mark.parametrize(
    ("kind", "operation", "flat"), [("RNN", "relu", False), ("Cell", "tanh", True), ("LSTM", "", True)]
)
def test_steps_through_relu_do_not_vanish_by_a_sigmoid(kind: str, operation: str, flat: bool) -> None:
    stream = MetricStream(Thresholds(), NAMES)
    for i in range(100):
        stream.observe(line(i, 2.0), {"grad/layer": EVEN, "time/ratio": [1e6]})
    seen = Inspection([ActivationOutput("rnn", kind, None, 0.1, operation=operation)])
    found = one(diagnose(stream, Measurements(inspection=seen)), "vanishing")
    assert found is not None and any("sigmoid" in cause for cause in found.causes) == flat and found.causes


def test_vanishing_cannot_be_checked_in_a_short_run_or_with_one_layer() -> None:
    assert "vanishing" in recorded([STEEP] * 39).unchecked and "vanishing" in recorded([STEEP] * 40).checked
    assert (
        recorded([[1.0]] * 100, names=NAMES[:1]).unchecked["vanishing"]
        == "the weights that are trained are of one layer"
    )
    stream = MetricStream(Thresholds(), NAMES[:1])
    for i in range(100):
        stream.observe(line(i, 2.0), {"grad/layer": [1.0], "time/ratio": [1e6]})
    assert diagnose(stream).verdict == "vanishing", "but of its time steps it can"


def test_a_layer_dominates_in_most_records_among_at_least_three() -> None:
    high = [1.0, 5.3, 1.0, 1.0]
    found = one(recorded([high] * 100), "dominant_layer")
    assert found is not None and math.isclose(found.evidence["part"], 5.3**2 / (5.3**2 + 3))
    own = one(recorded([high] * 100, names=["a.w", "token", "b.w", "c.w"]), "dominant_layer")
    assert own is not None and "is that of token, one of 4 layers" in own.sentence
    assert one(recorded([high, EVEN] * 50), "dominant_layer") is None
    assert one(recorded([EVEN] * 10 + [high] + [None] * 89), "dominant_layer") is None, "one record is one"
    assert one(recorded([[1.0, 5.3]] * 100, names=NAMES[:2]), "dominant_layer") is None
    assert one(recorded([high] * 99 + [[0.0] * 4]), "dominant_layer") is not None


def test_a_parameter_without_a_gradient_is_critical_where_there_are_many_or_nothing_is_learnt() -> None:
    many = [f"layer{i}.weight" for i in range(11)]

    def broken(missing: int, losses: list[float], names: list[str] = many) -> Finding:
        stream = MetricStream(Thresholds(), names)
        for i, loss in enumerate(losses):
            stream.observe(line(i, loss), {"grad/layer": [None] * missing + [1.0] * (len(names) - missing)})
        found = one(diagnose(stream), "broken_graph")
        assert found is not None
        return found

    assert broken(1, FALLING).severity == "warning" and broken(2, FALLING).severity == "critical"
    assert broken(1, FLAT).severity == "critical"
    assert broken(4, FALLING).sentence.endswith("and 1 more") and broken(3, FALLING).sentence.endswith("layer2.weight")


def test_large_updates_are_a_fault_only_where_they_are_usual_and_the_run_is_lost() -> None:
    def severity(losses: list[float], moved: float, **rest) -> str | None:
        return run(losses, moved=[moved] * 4, **rest).get("update_too_large")

    assert severity(FLAT, 0.099) is None and severity(FALLING, 0.2) == "info" and severity(FLAT, 0.2) == "warning"
    assert severity(FALLING, 0.2, **FAILED) == "warning"
    lost = [*FALLING[:70], *[math.nan] * 20]
    assert severity(lost, 0.2, skipped=[False] * 70 + [True] * 20) == "warning", "nothing is applied any more"
    stream = MetricStream(Thresholds(), NAMES)
    for i in range(100):
        stream.observe(line(i, 2.0) | {"update/ratio": 0.5 if i == 50 else 0.01})
    assert {f.code: f.severity for f in diagnose(stream).findings}["update_too_large"] == "info", "one of them is"
    for i in range(100, 300):
        stream.observe(line(i, 2.0) | {"update/ratio": math.nan})
    told = {f.code: f.sentence for f in diagnose(stream).findings}["update_too_large"]
    measured = "the 100 updates that were measured moved the weights by 0.01 times their norm in the median"
    assert told == f"{measured}, and by 0.5 at most", "weights that are lost have none"
    stream.observe(line(300, 2.0) | {"update/ratio": math.inf})
    told = {f.code: f.sentence for f in diagnose(stream).findings}["update_too_large"]
    assert told.startswith("of the 101 updates that were measured 100 moved weights that were not zero, by 0.01 times")


def test_a_live_lock_is_of_skipped_updates_in_a_row() -> None:
    skipped = [False] * 60 + [True] * 7 + [False] + [True] * 7
    assert "scale_livelock" not in run([2.0] * 75, skipped=skipped, scales=[8.0] * 75, dynamic_loss_scale=True)
    assert "scale_livelock" in run([2.0] * 15, skipped=[True] * 15, scales=[8.0] * 15, dynamic_loss_scale=True), (
        "from the first on"
    )
    assert "scale_livelock" in run([2.0] * 90, **DEAD_AT_END, dynamic_loss_scale=True)
    assert "scale_livelock" not in run([2.0] * 90, **DEAD_AT_END), "there is no scale to move"
    slow = {"skipped": [True] * 60, "scales": [1e12 * 0.99**i for i in range(60)], "dynamic_loss_scale": True}
    assert "scale_livelock" in run([2.0] * 60, **slow, **overflow("backward")), "it falls too little"
    assert "scale_livelock" not in run([2.0] * 60, **slow, **overflow("forward")), "no scale helps there"
    halved = slow | {"scales": [1e12 * 0.5 ** (i // 3) for i in range(60)]}
    assert "scale_livelock" not in run([2.0] * 60, **halved, **overflow("backward")), "as a scaler does"


def test_weights_that_one_update_threw_away_are_not_stalled() -> None:
    for ratio, expected in ((12.0, "update_too_large"), (0.5, "stalled")):
        stream = MetricStream(Thresholds(), NAMES)
        for i in range(100):
            stream.observe(line(i, 2.0) | {"update/ratio": 1e-7 if i else ratio})
        assert diagnose(stream).verdict == expected, ratio


def test_an_overflow_of_fp16_is_one_of_the_forward_pass_that_fp32_holds() -> None:
    for phase, largest, found in (("forward", 7e4, True), ("loss", 7e4, False), ("forward", None, False)):
        given = overflow(phase, output_max=largest)
        assert ("overflow_fp16" in run(FLAT, fp16_forward=True, **given)) is found
    assert "underflow_fp16" not in run(FLAT, fp16_forward=True, inspection=Inspection())


def test_without_a_replay_the_cause_of_a_failing_update_is_unchecked() -> None:
    well, failed = [line(i, loss) for i, loss in enumerate(FALLING)], {"status": "failed", "error": "why"}
    assert "nan_input" in verdict(well).checked and "nan_input" in verdict(well, **failed).unchecked
    assert "nan_input" in verdict(well, **failed, overflow=Overflow("forward", "layer", "Linear")).checked


def test_a_loss_is_at_fault_only_where_it_is_the_first_that_is_not_finite() -> None:
    assert "nan_loss" not in run(FLAT, **overflow("forward", outputs=MODERATE))
    nothing = range_of("targets", torch.tensor([math.nan]))
    found = verdict([line(i, 2.0) for i in range(99)], **overflow("loss", outputs=MODERATE, targets=nothing))
    assert found.verdict == "nan_loss" and found.evidence["outputs"] == [-9e3, 9e3] and "targets" not in found.evidence


def test_a_gradient_that_is_not_finite_is_reported_with_what_is_known() -> None:
    lines = [line(i, 2.0) for i in range(60)]
    assert verdict(lines, "failed", error="why").sentence == "why"
    told = verdict(lines, "failed", error="why", overflow=Overflow("backward", "layer", "Linear")).sentence
    assert told.startswith("why; ") and "layer (Linear)" in told
    skipped = [line(60 + i, math.nan, math.nan, True) for i in range(20)]
    assert verdict([*lines, *skipped]).sentence.startswith("the last 20 updates were skipped")


def test_overclipped_is_to_a_small_part_in_a_run_that_came_to_its_end() -> None:
    assert run(FLAT, coefficients=[0.09] * 100, clips=True)["overclipped"] == "critical"
    assert "overclipped" not in run(FLAT, coefficients=[0.11] * 100, clips=True)
    assert run(FLAT, coefficients=[0.09] * 100, clips=True, **FAILED)["overclipped"] == "info"
    for moved, severity in ((1e-3, "info"), (1e-5, "critical")):
        found = run(FLAT, coefficients=[0.09] * 100, clips=True, moved=[moved] * 4)
        assert found["overclipped"] == severity, "a bound that was made for the rate"
    assert "clip_idle" not in run(FLAT, skipped=[True] * 100, clips=True), "nothing was applied"


def test_fallbacks_are_dropped_and_an_interrupted_run_is_unhealthy_only_if_critical() -> None:
    assert "not_learning" in run(FLAT, layers=EVEN) and "not_learning" not in run(FLAT, layers=STEEP)
    spiked = [line(i, loss) for i, loss in enumerate(spike(3.0))]
    assert verdict(spiked).verdict == "loss_spike_recovered" and verdict(spiked, "interrupted").verdict == "interrupted"
    lost = [line(i, 2.0 + i) for i in range(100)]
    assert verdict(lost, "interrupted").verdict == "diverged"
    assert verdict(lost[:5], "interrupted").sentence == "stopped after 5 updates"


def test_every_diagnosis_has_its_numbers_and_other_findings_besides_the_verdict() -> None:
    found = verdict([line(i, 2.0 + i, 1.0) for i in range(100)], constant=3.0, clips=True)
    assert found.evidence["loss_of_constant_answer"] == 3.0 and found.verdict == "diverged"
    assert {f.code for f in found.findings} == {"diverged", *(f.code for f in remaining(found))}
    assert "diverged" not in {f.code for f in remaining(found)} and remaining(found)
    assert "loss_of_constant_answer" not in verdict([line(i, 2.0) for i in range(100)]).evidence


def test_a_scale_has_collapsed_where_it_fell_far_and_still_falls() -> None:
    def told(last: float, skips: int, scaled: bool = True, ended: bool = False) -> str | None:
        """A scale that falls evenly over the last 40 updates, so many of them skipped."""
        lines = [line(i, FLAT[0]) for i in range(60)]
        for i in range(40):
            skipped = i >= 40 - skips
            lines.append(line(60 + i, 2.0, skipped=skipped, scale=last ** (max(i + 1 - 40 + skips, 0) / skips)))
        found = one(verdict(lines, dynamic_loss_scale=scaled, scale_too_small=ended), "scale_collapse")
        return found.sentence if found else None

    assert "still falling" in (told(0.9e-3, 15) or "") and told(1.1e-3, 15) is None
    assert told(0.9e-3, 10) is None, "a quarter of the last updates"
    assert told(0.9e-3, 15, scaled=False) is None
    assert (told(0.9e-3, 15, ended=True) or "").startswith("no loss scale can help")
