"""A run's loss in three numbers: their definition, and that all reports of a run have the same."""

import json
import math
import statistics
from pathlib import Path

import made
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradlab.base.json_lines import number
from gradlab.diagnosis.diagnose import MetricStream, diagnose
from gradlab.diagnosis.options import Thresholds
from gradlab.list import main as listed
from gradlab.measure.levels import Levels
from gradlab.remedies.compared_job import measure
from gradlab.runs.record import RunRecord


@given(st.lists(st.floats(-10, 10) | st.sampled_from([math.nan, math.inf]), min_size=1, max_size=350))
@settings(max_examples=100, deadline=None)
def test_the_numbers_of_a_stream_are_those_of_its_definition(losses: list[float]) -> None:
    found, size = Levels(losses), max(1, min(20, len(losses) // 5))
    values = [v if math.isfinite(v) else math.inf for v in losses]
    level = [statistics.median(values[i : i + size]) for i in range(0, len(values) - size + 1, size)]
    assert found.final == statistics.median(values[-size:])
    assert found.best == min(*level, found.final)
    finite = [v for v in losses if math.isfinite(v)]
    assert found.initial == finite[0] if finite else math.isnan(found.initial)
    assert len(found.latest) <= 100


def test_a_level_is_a_median_and_infinite_where_half_of_a_window_is_not_finite() -> None:
    assert Levels([1.0] * 60 + [0.0] + [1.0] * 60).best == 1.0
    assert Levels([9.0] * 80 + [1.0] * 11 + [5.0] * 9).final == 1.0
    assert Levels([1.0] * 91 + [math.nan] * 9).final == 1.0
    assert Levels([1.0] * 89 + [math.nan] * 11).final == math.inf
    assert math.isnan(Levels().final) and math.isnan(Levels().best)


@pytest.mark.parametrize("updates", [7, 50, 300])
def test_everything_that_reports_a_run_reports_the_same_losses(
    updates: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    speed = {"throughput/samples_per_second": 1.0}
    lines = [made.line(i, 3 * 0.98**i + i % 3 / 10, **speed) for i in range(1, updates + 1)]
    stream = MetricStream(Thresholds())
    for line in lines:
        stream.observe(line)
    diagnosis = diagnose(stream)
    told = {k: number(v) for k, v in diagnosis.evidence.items()}
    folder = made.run(tmp_path / "run", lines, made.diagnosis())
    kept = RunRecord(folder).measured
    assert (kept["loss/initial"], kept["loss/best"], kept["loss/final"]) == (
        told["loss_first"],
        told["loss_best"],
        told["loss_last"],
    )
    assert measure(lines)["train_loss"] == kept["loss/final"]
    assert listed([str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["loss"] == kept["loss/final"]
    assert (
        diagnosis.verdict == ("healthy" if updates >= 40 else "too_short")
        and f" to {kept['loss/final']:.4g}" in diagnosis.sentence
    )
