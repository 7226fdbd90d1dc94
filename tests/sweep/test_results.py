"""Rows of a sweep: what became of each run, and the numbers that its files give."""

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import sweeps

from gradlab.base.fields import value
from gradlab.diagnosis.diagnose import MetricStream, diagnose
from gradlab.diagnosis.measurements import Measurements
from gradlab.diagnosis.options import VERDICTS, Thresholds
from gradlab.runs.curve import curve
from gradlab.runs.measured import lost_at, measured
from gradlab.runs.outcome_class import (
    CLASS_OF_VERDICT,
    NAMES,
    STABLE,
    finding_class,
    learns,
    outcome_class,
    share,
    worst,
)
from gradlab.runs.record import RunRecord
from gradlab.runs.sweep_record import swept
from gradlab.sweep.results import read, write
from gradlab.sweep.search import judge


@pytest.mark.parametrize(
    ("verdict", "status", "learnt", "last", "expected"),
    [
        ("healthy", "completed", True, 1.0, "learnt"),
        ("healthy", "completed", False, 1.0, "unlearnt"),
        ("saturated_units", "completed", False, 2.4, "unlearnt"),
        ("dominant_layer", "completed", True, 1.0, "learnt"),  # not well, and yet it learns
        ("loss_spike_recovered", "completed", True, 1.0, "spiked"),
        ("diverged", "completed", True, 4.0, "diverged"),
        ("exploding", "completed", True, 4.0, "exploded"),
        ("nan_gradient", "failed", True, math.inf, "exploded"),
        ("overflow_fp16", "failed", True, math.inf, "collapsed"),
        ("scale_collapse", "failed", True, math.inf, "collapsed"),
        ("stalled", "failed", False, math.inf, "exploded"),
        ("stalled", "failed", False, 1.0, "exploded"),
        ("healthy", "completed", True, math.nan, "exploded"),
        ("interrupted", "interrupted", True, 1.0, "stopped"),
        ("exploding", "interrupted", True, 4.0, "exploded"),
        ("diverged", "given_up", True, 4.0, "diverged"),
        ("too_short", "completed", True, 1.0, "too_short"),
        ("not_learning", "completed", False, 1.0, "unlearnt"),
        ("unbounded_loss", "completed", True, -1e9, "exploded"),
        (None, None, False, math.nan, "error"),
    ],
)
def test_what_became_of_a_run(verdict, status, learnt, last, expected) -> None:  # type: ignore[no-untyped-def]
    assert outcome_class(verdict, status, learnt, last) == expected


def test_a_rule_says_whether_a_run_is_lost_by_its_finding() -> None:
    """Of a plugin's rule, and of bad_batch where the damage lasted: a critical finding with a class of its own."""
    critical = {"code": "own_rule", "severity": "critical", "lost": "diverged"}
    assert finding_class(critical) == "diverged" and finding_class(critical | {"code": "exploding"}) == "exploded"
    assert not finding_class(critical | {"severity": "warning"}) and not finding_class(critical | {"lost": ""})
    assert outcome_class("own_rule", "completed", True, 1.0, "diverged") == "diverged"
    assert outcome_class("own_rule", "completed", True, 1.0, "") == "learnt"
    assert outcome_class("own_rule", "failed", True, 1.0, "diverged") == "exploded"
    assert judge.lost({"findings": [critical]}) and not judge.lost({"findings": [critical | {"lost": ""}]})


def test_a_diagnosis_says_whether_its_run_has_learnt() -> None:
    assert learns({"learns": True}) and not learns({"learns": False}) and not learns({})


def followed(losses: list[float]) -> MetricStream:
    stream = MetricStream(Thresholds())
    for i, loss in enumerate(losses, 1):
        line = {"attempt": i, "train/loss": loss, "grad/norm": 1.0, "update/skipped": False, "amp/scale": 1.0}
        stream.observe(line)
    return stream


@pytest.mark.parametrize(
    ("losses", "constant", "expected"),
    [
        ([2.0 - min(i, 60) / 60 * 1.4 for i in range(100)], 2.0, True),
        ([2.0 - min(i, 60) / 60 * 1.4 for i in range(100)], 0.6, False),
        ([9.0, *(2.0 - min(i, 60) / 60 * 0.05 for i in range(99))], None, False),  # one batch of outliers at first
    ],
)
def test_a_run_learns_in_its_map_and_in_a_search_if_it_does_in_its_diagnosis(
    tmp_path: Path, losses: list[float], constant: float | None, expected: bool
) -> None:
    found = diagnose(followed(losses), Measurements(constant=constant))
    assert found.learns is expected
    folder = sweeps.job(
        tmp_path / "0", ["a=1"], losses, **found.as_dict() | {"ill": found.unhealthy, "verdict": "healthy"}
    )
    assert judge.learns(judge.read(folder)) is expected
    (row,) = read(tmp_path)
    assert (row["outcome"] == "learnt") is expected


@pytest.mark.parametrize("updates", [1, 2, 8, 20, 30, 39, 40, 60])
def test_a_run_too_short_for_two_windows_has_not_learnt(updates: int) -> None:
    for fall in (0.5, 0.0):
        found = diagnose(followed([2.0 - fall * i / updates for i in range(updates)]))
        assert found.learns is (fall > 0 and updates >= 40)


def test_every_class_and_verdict_is_one_that_exists() -> None:
    assert set(CLASS_OF_VERDICT) <= set(VERDICTS) and set(CLASS_OF_VERDICT.values()) <= set(NAMES) - set(STABLE)
    assert set(NAMES) & set(VERDICTS) == {
        "diverged",
        "too_short",
    }  # a word is of one list; a class that is one verdict has its name
    assert [verdict for verdict, name in CLASS_OF_VERDICT.items() if name == "diverged"] == ["diverged"]


def test_repeats_count_as_their_worst_and_those_not_judged_do_not_count() -> None:
    assert worst(["learnt", "exploded", "spiked"]) == "exploded"
    assert share(["learnt", "exploded", "stopped", "unlearnt"]) == pytest.approx(2 / 3)
    assert math.isnan(share(["stopped", "error", "too_short"])) and worst(["learnt", "too_short"]) == "too_short"


def test_numbers_are_those_of_numpy(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    losses, norms = list(draws.uniform(1, 2, 100)), list(draws.lognormal(0, 2, 100))
    losses[0], norms[50] = math.nan, math.inf
    folder = sweeps.job(tmp_path / "0", ["a=1"], losses, norms)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"update":101,"attempt":101,"train/loss":7.0,"grad/no')  # killed while it wrote
    found, finite = measured(RunRecord(folder).updates, began=41), np.array(norms)[np.isfinite(norms)]
    assert found["loss/initial"] == losses[1] and found["loss/final"] == np.median(losses[-20:])
    assert found["grad/norm_median"] == pytest.approx(np.median(finite))
    assert found["grad/norm_p95"] == pytest.approx(np.quantile(finite, 0.95)) and found["grad/norm_max"] == max(finite)
    assert (found["updates"], found["survived"], found["skipped"], found["clip/fraction"]) == (100, 40, 0, 0.25)
    levels = [np.median(np.nan_to_num(losses[i : i + 20], nan=math.inf)) for i in range(0, 100, 20)]
    assert found["loss/best"] == min(levels)


def test_a_job_that_left_nothing_has_no_numbers(tmp_path: Path) -> None:
    found = measured(RunRecord(tmp_path).updates)
    assert found["loss/final"] is None and found["updates"] == found["survived"] == 0
    assert curve(tmp_path / "metrics.jsonl") == [[], [], []]
    (tmp_path / "metrics.jsonl").write_text("")
    assert curve(tmp_path / "metrics.jsonl") == [[], [], []] and RunRecord(tmp_path).lines == []


@pytest.mark.parametrize(("updates", "points"), [(50, 200), (1000, 200), (1000, 8), (1, 200)])
def test_a_curve_is_spread_over_the_run_with_both_its_ends(tmp_path: Path, updates: int, points: int) -> None:
    losses = [float(i) for i in range(updates)]
    losses[-1] = math.inf
    folder = sweeps.job(tmp_path / "0", ["a=1"], losses)
    attempts, shown, _ = curve(folder / "metrics.jsonl", points)
    assert attempts[0] == 1 and attempts[-1] == updates and len(attempts) <= points and shown[-1] is None
    assert shown[:-1] == [a - 1 for a in attempts[:-1] if a is not None]
    gaps = np.diff(np.array(attempts, dtype=float))
    assert (gaps > 0).all() and (updates <= 1 or gaps.max() <= max(1, 1.3 * updates / points + 1))


def test_swept_fields_are_those_that_differ() -> None:
    assert swept([["a=1", "b=x", "+c=1"], ["a=2", "b=x"], ["a=1", "b=x"]]) == ["a", "c"]
    assert [value(t) for t in ("1e-3", "4", "true", "null", "adam", "[1,2]", "nan")][:6] == [
        1e-3,
        4,
        True,
        None,
        "adam",
        "[1,2]",
    ]


def test_overrides_mean_what_yaml_says(tmp_path: Path) -> None:
    import yaml

    awkward = [
        "a=1",
        "+experiment=x",
        "story=it's: #1",
        "+remedy=[a,b]",
        "b='x y'",
        "path=C:/x",
        "e=" + "long word " * 20,
    ]
    for given in ([], ["a=1", "+b.c=x", "++d=[1,2]"], *([one] for one in awkward)):
        (tmp_path / ".hydra").mkdir(exist_ok=True)
        (tmp_path / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump(given))
        assert RunRecord(tmp_path).typed == given


def test_only_what_is_lost_has_a_beginning() -> None:
    found = {"findings": [{"code": "exploding", "began": 7}, {"code": "overclipped", "began": 1}]}
    assert lost_at(found | {"verdict": "exploding"}) == 7
    assert lost_at(found | {"verdict": "overclipped"}) is None and lost_at({}) is None


def test_a_sweep_that_was_cut_short_still_gives_its_rows(tmp_path: Path) -> None:
    folder = sweeps.sweep(tmp_path / "s", [0.1, 1.0], [1, 10], lambda y, seed: 0.5)
    (folder / "0" / "diagnosis.json").write_text('{"verdict": "heal')
    (folder / "1" / "diagnosis.json").write_text("[]")
    (folder / "2" / "diagnosis.json").unlink()
    (folder / "2" / "metrics.jsonl").unlink()
    rows = read(folder)
    assert [row["outcome"] for row in rows] == ["error", "error", "stopped", "exploded"]
    assert rows[0]["exit_code"] == 1 and rows[0]["updates"] == 30 and rows[2]["updates"] == 0
    assert rows[3]["loss/final"] == math.inf and rows[3]["survived"] == 10 and rows[3]["updates"] == 21
    write(rows, folder / "results.csv")
    shutil.rmtree(folder / "3" / ".hydra")
    assert len(read(folder)) == 3
