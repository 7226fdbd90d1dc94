"""A loss that the run's own updates drove up, and its way back; beside losses that began high."""

import math
from pathlib import Path

import made
import pytest
from test_rules import line
from test_true_sentences import told

from gradlab.diagnosis.diagnose import MetricStream, diagnose
from gradlab.diagnosis.finding import Diagnosis
from gradlab.diagnosis.inspection import ActivationOutput, Inspection
from gradlab.diagnosis.measurements import Measurements
from gradlab.diagnosis.options import Thresholds
from gradlab.remedies.evidence import evidence
from gradlab.runs.record import RunRecord

DRIVEN_UP = [3.9, *(1000.0 / 1.4**i for i in range(19))]


def of(first: list[float], end: float, ratio: float, constant: float | None = None) -> Diagnosis:
    stream = MetricStream(Thresholds())
    for i, loss in enumerate([*first, *[end + 0.01 * (-1) ** i for i in range(200)]], 1):
        stream.observe(line(i, loss) | {"update/ratio": ratio if i == 1 else 3e-3})
    return diagnose(stream, Measurements(constant=constant))


@pytest.mark.parametrize(
    ("end", "ratio", "learns"),
    [
        (6.0, 1.7, False),  # it is worse than when it began
        (2.0, 1.7, True),
        (6.0, 2e-3, True),  # no update did that: the first batch was an easy one
    ],
)
def test_the_way_back_from_a_blow_up_of_its_own_is_no_learning(end: float, ratio: float, learns: bool) -> None:
    found = of(DRIVEN_UP, end, ratio)
    assert found.learns == learns and (found.verdict == "healthy") == (ratio < 1)
    assert "went from 0" not in found.sentence


@pytest.mark.parametrize(("first", "ratio"), [(DRIVEN_UP, 1.7), ([3.9] * 20, 1.7), (DRIVEN_UP, 2e-3)])
def test_a_blow_up_is_told_of_a_run_that_has_learnt_after_it(first: list[float], ratio: float) -> None:
    found = of(first, 2.0, ratio, 2.3)
    blown = first is DRIVEN_UP and ratio > 1
    assert (found.verdict == "update_too_large") == blown and found.learns and not found.unhealthy
    assert not blown or "the loss went from 3.9 up to 1000, and ends at 2" in found.sentence


@pytest.mark.parametrize(("constant", "said"), [(0.17, "fell from 0.17, the best constant answer's,"), (None, "17.5")])
def test_a_number_that_no_loss_of_the_run_was_is_named(constant: float | None, said: str) -> None:
    losses = [17.5] * 20 + [0.1] * 60 + [0.15] * 60
    stream = MetricStream(Thresholds())
    for i, loss in enumerate(losses, 1):
        stream.observe(line(i, loss + 0.001 * (-1) ** i))
        if i % 35 == 0:
            stream.observe({"eval/loss": [9.0, 0.1, 0.12, 0.15][i // 35 - 1]})
    found = diagnose(stream, Measurements(constant=constant, eval_constant=constant))
    assert constant is None or said in told(found, "diverged").sentence


SATURATED = Inspection([ActivationOutput("a", "Tanh", 0.99, None)], 160)


@pytest.mark.parametrize(("lowest", "grown", "named"), [(2.4, 1.0, True), (0.4, 1.0, False), (2.4, 80.0, False)])
def test_weights_that_a_run_began_with_are_no_cause_where_it_learnt_or_left_them(
    lowest: float, grown: float, named: bool
) -> None:
    stream = MetricStream(Thresholds())
    for i in range(1, 201):
        loss = 2.85 if i < 10 else lowest if i < 50 else 80.0 + 0.1 * (-1) ** i
        stream.observe(line(i, loss) | {"update/ratio": 0.05, "param/norm": 9.0 if i == 1 else 9.0 * grown})
    causes = told(diagnose(stream, Measurements(constant=2.3, inspection=SATURATED)), "saturated_units").causes
    assert ("initial weights that are too large" in causes) == named and causes[-1] == "the learning rate is too high"


@pytest.mark.parametrize(("end", "causes"), [(0.1, ["the loss nears its minimum"]), (2e4, [])])
def test_a_loss_nears_its_minimum_where_something_is_learnt(end: float, causes: list[str]) -> None:
    stream = MetricStream(Thresholds())
    for i in range(1, 201):
        stream.observe(line(i, end + (1e5 - 500 * i if end > 1 else 2.0 / i), 1e7 / i))
    found = diagnose(stream, Measurements(constant=2.3, inspection=Inspection()))
    assert told(found, "decaying_norm").causes == causes


@pytest.mark.parametrize(("after", "large"), [(159.0, True), (4.3, False)])
def test_an_update_between_two_records_of_the_weights_is_measured_by_these(after: float, large: bool) -> None:
    """Where all updates that were recorded were skipped: the rate comes before fp16's range."""
    stream = MetricStream(Thresholds())
    for i in range(1, 40):
        norms = {"param/norm": 4.2 if i < 14 else after, "update/ratio": 0.0} if i % 5 == 1 else {}
        stream.observe(line(i, math.nan if i > 13 else 700.0, math.inf, i != 13, 2.0 ** (15 - i)) | norms)
    known = {"scale_too_small": True, "dynamic_loss_scale": True, "status": "failed"}
    found = diagnose(stream, Measurements(**known))
    causes = told(found, "scale_collapse").causes
    assert causes[0] == ("the learning rate is too high" if large else "activations pass fp16's largest number, 65504")
    moved = [f.evidence["largest"] for f in found.findings if f.code == "update_too_large"]
    assert moved == ([pytest.approx(159.0 / 4.2 - 1)] if large else [])


@pytest.mark.parametrize("largest", [37.0, 0.5])
def test_the_rate_is_lowered_by_an_update_that_was_found_between_two_records(tmp_path: Path, largest: float) -> None:
    lines = [made.line(i, 1.0, **{"update/skipped": i != 2}) for i in range(4)]
    told = made.diagnosis("scale_collapse", ill=True)
    told["findings"] = [{"code": "update_too_large", "evidence": {"largest": largest}}]
    e = evidence(RunRecord(made.run(tmp_path / "run", lines, told)))
    assert list(e.ratios) == ([largest] if largest > 1 else [])
