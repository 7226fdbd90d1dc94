"""Remedies side by side: effects near their thresholds, judgements, and a sweep from its folders to its table."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forked import Commands
from hypothesis import given, settings
from hypothesis import strategies as st

from gradlab.base.statistics import quantile
from gradlab.base.table import fitting, lines
from gradlab.remedies.compared_job import ComparedJob, compared_job, measure
from gradlab.remedies.comparison_rows import compare
from gradlab.remedies.comparison_table import report
from gradlab.remedies.paired_effect import direction, half_width, improvement, judge, paired

UNHEALTHY, HEALTHY = [True] * 3, [False] * 3
SAME = [0.0] * 3


@given(st.lists(st.floats(-1, 1), min_size=3, max_size=30))
@settings(max_examples=50, deadline=None)
def test_the_interval_is_that_of_a_paired_t_test(differences: list[float]) -> None:
    from scipy.stats import ttest_1samp

    if np.std(differences) < 1e-6:
        return
    effect = paired(differences)
    expected = ttest_1samp(differences, 0).confidence_interval(0.95)
    assert (effect.low, effect.high) == pytest.approx((expected.low, expected.high), rel=1e-9, abs=1e-12)
    assert half_width(differences) == pytest.approx((expected.high - expected.low) / 2)
    assert effect.size == pytest.approx(np.mean(differences) / np.std(differences, ddof=1))


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        # mean 0.2, standard deviation s: the interval of three is 0.2 -+ 2.484 s, and leaves out 0 up to s = 0.0805
        ([0.12, 0.2, 0.28], 1),
        ([0.119, 0.2, 0.281], 0),
        ([-0.12, -0.2, -0.28], -1),
        ([-0.119, -0.2, -0.281], 0),
        ([0.0101] * 3, 1),  # identical differences are as sure as can be, and count from 1%
        ([0.0099] * 3, 0),
        ([-0.0101] * 3, -1),
        ([0.0] * 3, 0),
        ([0.11], 1),  # few seeds: 10% under each
        ([0.09], 0),
        ([-0.11], -1),
        ([0.5, 0.09], 0),
        ([0.5, 0.11], 1),
        ([], 0),
    ],
)
def test_direction_on_both_sides_of_its_thresholds(differences: list[float], expected: int) -> None:
    assert direction(differences) == expected


def test_a_shift_of_each_difference_keeps_the_spread_and_an_identical_one_has_an_infinite_effect() -> None:
    one, other = paired([0.1, 0.2, 0.4]), paired([1.1, 1.2, 1.4])
    assert one.high - one.low == pytest.approx(other.high - other.low)  # type: ignore[operator]
    assert paired([0.1] * 3).size == math.inf and paired([-0.1] * 3).size == -math.inf and paired(SAME).size == 0
    assert paired([0.1]).low is None


@pytest.mark.parametrize(
    ("before", "after", "survived", "improved", "expected"),
    [
        (UNHEALTHY, HEALTHY, SAME, [], "cured"),
        (UNHEALTHY, HEALTHY, [-0.2] * 3, [], "cured"),
        (UNHEALTHY, [True, False, False], SAME, [], "helped"),  # two of three
        (UNHEALTHY, [True, True, False], SAME, [], "no effect"),  # one of three
        (UNHEALTHY, UNHEALTHY, [0.2] * 3, [], "helped"),
        (UNHEALTHY, UNHEALTHY, [-0.2] * 3, [0.5] * 3, "worse"),  # what it survives comes first
        (UNHEALTHY, UNHEALTHY, SAME, [0.2, 0.2, 0.21], "helped"),
        (UNHEALTHY, UNHEALTHY, SAME, [-0.2, -0.2, -0.21], "worse"),
        (UNHEALTHY, UNHEALTHY, SAME, SAME, "no effect"),
        (HEALTHY, HEALTHY, SAME, SAME, "no effect"),
        (HEALTHY, HEALTHY, SAME, [0.05, 0.06, 0.05], "helped"),
        (HEALTHY, HEALTHY, SAME, [-0.05, -0.06, -0.05], "worse"),
        (HEALTHY, UNHEALTHY, SAME, SAME, "worse"),
        (HEALTHY, [True, True, False], SAME, [0.5] * 3, "worse"),
        (HEALTHY, [True, False, False], SAME, SAME, "no effect"),
        ([True, True, False], HEALTHY, SAME, SAME, "helped"),
        ([True, False, False], HEALTHY, SAME, SAME, "no effect"),
        ([True, True], [True, False], [0.0] * 2, [], "helped"),  # just half
        ([False, False], [True, False], [0.0] * 2, [], "worse"),
        ([True], [False], [0.0], [], "cured"),
        ([True], [True], [0.5], [], "helped"),
        ([True], [True], [0.05], [], "no effect"),
        ([False], [True], [0.0], [], "worse"),
    ],
)
def test_judgements(
    before: list[bool], after: list[bool], survived: list[float], improved: list[float], expected: str
) -> None:
    judgement, why = judge(before, after, survived, improved)
    assert judgement == expected and why


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.floats(0, 1))
@settings(max_examples=50, deadline=None)
def test_quantiles_are_numpys(values: list[float], q: float) -> None:
    assert quantile(values, q) == pytest.approx(np.quantile(values, q), rel=1e-9, abs=1e-6)


def test_an_improvement_is_a_fraction_of_what_the_loss_was() -> None:
    assert math.isnan(improvement(math.inf, 1.0)) and improvement(2.0, 1.0) == 0.5
    assert improvement(-1.0, -2.0) == 1.0  # losses below zero


def line(attempt: int, loss: float, norm: float, skipped: bool = False) -> dict[str, Any]:
    rest = {"clip/fraction": 0.25, "throughput/samples_per_second": 100.0, "update": attempt - skipped}
    return {"attempt": attempt, "train/loss": loss, "grad/norm": norm, "update/skipped": skipped, **rest}


def test_what_is_measured_of_a_run() -> None:
    lines = [line(i, 2.0, float(i)) for i in range(1, 101)]
    lines += [{"eval/loss": 3.0}, line(101, math.nan, math.nan, True), line(102, math.inf, math.inf, True)]
    seen = measure([*lines, {"eval/loss": 1.5}])
    assert seen["grad_norm_median"] == 50.5 and seen["grad_norm_p99"] == pytest.approx(99.01)
    assert (seen["first_failing"], seen["last_failing"], seen["skipped"]) == (101, 102, 2)
    assert (seen["train_loss"], seen["eval_loss"], seen["clip_fraction"]) == (2.0, 1.5, 0.25)
    assert seen["seconds_per_sample"] == 0.01 and seen["updates"] == 101
    assert measure([])["first_failing"] is None


def run(remedy: str, seed: int, verdict: str | None, loss: float = 1.0, updates: int = 100, **rest: Any) -> ComparedJob:
    unhealthy = None if verdict is None else verdict != "healthy"
    common: dict[str, Any] = {
        "measured": {"train_loss": loss, "updates": updates, "seconds_per_sample": 0.01},
        "rest": ("model=x",),
        "planned": 100,
        "completed": updates == 100,
        "survived": updates / 100,
    }
    return ComparedJob(str(seed), remedy, str(seed), verdict=verdict, unhealthy=unhealthy, **(common | rest))


def judged(runs: list[ComparedJob]) -> dict[str, str]:
    return {row["remedy"]: row["judgement"] for row in compare(runs)}


def test_remedies_are_paired_by_seed_and_sorted_by_evidence() -> None:
    runs = [run("none", s, "exploding", 5.0, 20 + s) for s in range(3)]
    runs += [run("worse", s, "exploding", 5.0, 5 + s) for s in range(3)]
    runs += [run("refused", s, None, why_not="no such field", measured={}) for s in range(3)]
    runs += [run("longer", s, "exploding", 5.0, 60 + s) for s in range(3)]
    runs += [run("same", s, "exploding", 5.0, 20 + s) for s in range(3)]
    runs += [run("good", s, "healthy", 0.5) for s in range(3)]
    runs += [run("better", s, "healthy", 0.1) for s in range(3)]
    runs += [run("killed", s, None, measured={}) for s in range(3)]
    runs += [run("one", 0, "healthy", 0.5)]
    assert list(judged(runs).items()) == [
        ("none", "baseline"),
        ("better", "cured"),
        ("good", "cured"),
        ("one", "cured"),
        ("longer", "helped"),
        ("same", "no effect"),
        ("worse", "worse"),
        ("killed", "not judged"),
        ("refused", "does not apply"),
    ]
    assert judged(runs[::-1]) == judged(runs)
    rows = {row["remedy"]: row for row in compare(runs)}
    assert rows["longer"]["survived"]["mean"] == pytest.approx(0.4) and rows["longer"]["seeds"] == 3
    assert rows["longer"]["improved"] is None  # neither run came to its end
    assert rows["one"]["survived"]["low"] is None and rows["refused"]["why"] == "no such field"


def test_losses_are_compared_only_of_complete_runs_with_the_same_loss() -> None:
    before = [run("none", s, "vanishing", 2.0) for s in range(3)]
    lower = [run("lower", s, "vanishing", 1.0 + s / 100) for s in range(3)]
    assert judged([*before, *lower])["lower"] == "helped"
    for one in lower:
        one.changed = {"loss.stable": [False, True]}
    assert judged([*before, *lower])["lower"] == "no effect"
    for one in lower:
        one.changed, one.completed = {"optimizer.lr": [1.0, 0.5]}, False
    assert judged([*before, *lower])["lower"] == "no effect"


@pytest.mark.parametrize(("before", "after", "share"), [(2.0, 1.0, 0.5), (0.2, -1.9, None), (-0.1, -1.0, None)])
def test_a_loss_below_zero_is_lower_by_no_share_of_itself(before: float, after: float, share: float | None) -> None:
    """It counts as lower all the same."""
    runs = [run("none", s, "diverged", before) for s in range(3)] + [
        run("rate", s, "diverged", after) for s in range(3)
    ]
    found = compare(runs)[1]
    assert found["judgement"] == "helped" and found["why"] == "it ends at a lower loss"
    assert (found["improved"] or {}).get("mean") == share


@pytest.mark.parametrize(("improved", "losses"), [([0.5, 0.0], True), ([], False)])
def test_of_runs_that_differ_by_chance_no_small_difference_is_claimed(improved: list[float], losses: bool) -> None:
    """One of two seeds may differ by far; and losses that cannot be compared are not."""
    judgement, why = judge([True] * 2, [True] * 2, [0.0] * 2, improved)
    assert judgement == "no effect" and ("loss" in why) == losses and "by less than" not in why


def test_only_runs_that_share_everything_else_are_compared() -> None:
    runs = [run("none", 0, "exploding", rest=("lr=1",)), run("clip", 0, "healthy", rest=("lr=1",))]
    runs += [run("none", 0, "healthy", rest=("lr=2",)), run("clip", 0, "exploding", rest=("lr=2",))]
    runs += [run("clip", 0, "exploding", rest=("lr=3",)), run("noise", 0, "exploding", rest=("lr=3",))]
    runs += [run("clip", 0, "exploding", rest=("lr=4",))]
    found = [(row["overrides"], row["remedy"], row["judgement"]) for row in compare(runs)]
    assert found[:4] == [
        ("lr=1", "none", "baseline"),
        ("lr=1", "clip", "cured"),
        ("lr=2", "none", "baseline"),
        ("lr=2", "clip", "worse"),
    ]
    assert found[4:] == [("lr=3", "clip", "not judged"), ("lr=3", "noise", "not judged")]


def test_a_narrow_terminal_leaves_out_whole_columns_and_cuts_none() -> None:
    names, rows = ["remedy", "judgement", "loss", "cost"], [["clip_norm", "no effect", "1.234", "1.05"]]
    least = ["loss", "cost"]
    assert fitting(names, rows, least, 80) == names
    assert fitting(names, rows, least, 36) == names[:3] and fitting(names, rows, least, 10) == names[:2]


def test_a_table_in_plain_text_is_aligned() -> None:
    assert lines(["a", "b", "c"], [["x", "long", "1"], ["wide", "-", "100"]]) == [
        "a     b       c",
        "x     long    1",
        "wide  -     100",
    ]


def test_a_job_that_left_nothing_is_not_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for job, remedy in enumerate(("none", "[a,b]")):
        (tmp_path / str(job) / ".hydra").mkdir(parents=True)
        overrides = f"- +experiment=x\n- seed=3\n- +remedy={remedy}\n- ++a.b=1\n"
        (tmp_path / str(job) / ".hydra" / "overrides.yaml").write_text(overrides)
    (tmp_path / "0" / "diagnosis.json").write_text("{")
    found = compared_job(tmp_path, "1")
    assert (found.remedy, found.seed, found.rest) == (
        "[a,b]",
        "3",
        ("++a.b=1", "+experiment=x"),
    ) and found.unhealthy is None
    report(tmp_path, ["0", "1"])
    assert "not judged" in capsys.readouterr().out and (tmp_path / "comparison.csv").is_file()


@pytest.mark.slow
def test_a_sweep_over_remedies_ends_with_their_comparison(gradlab: Commands, tmp_path: Path) -> None:
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    mine = (
        "# @package _global_\ndefaults:\n  - override /model: sigmoid_mlp\n  - override /data: digits\n"
        "  - override /optimizer: sgd\nexpect: exploding\n"
    )
    mine += "model: {layers: 12, activation: relu, init: too_large, width: 32}\n"
    mine += "data: {samples: 256}\noptimizer: {lr: 0.03}\n"
    (tmp_path / "mine" / "experiment" / "mine.yaml").write_text(mine)
    given = ["--config-dir", "mine", "+experiment=mine", "trainer.epochs=15", "trainer.progress=none"]
    remedies = "+remedy=none,gated,[he_init,clip_norm],higher_lr"
    result = gradlab("-m", *given, remedies, "seed=0,1,2", cwd=tmp_path)
    assert result.code == 0, result  # also of those that do not apply
    (sweep,) = tmp_path.glob("outputs/mine/sweep*")
    rows = {row["remedy"]: row for row in json.loads((sweep / "comparison.json").read_text())}
    assert rows["none"]["verdicts"] == {"exploding": 3}
    assert [run["ill"] for run in rows["none"]["runs"]] == [True] * 3
    best = rows["[he_init,clip_norm]"]
    assert best["judgement"] == "cured" and best["verdicts"] == {"healthy": 3}
    assert best["changed"] == {
        "clip": ["none", "norm"],
        "clip.max_norm": [None, 1.0],
        "clip.norm_type": [None, 2.0],
        "model.init": ["too_large", "he"],
    }
    assert best["clip_fraction"] is not None and rows["none"]["first_failing"] <= rows["none"]["updates"] + 1
    assert rows["higher_lr"]["judgement"] in ("no effect", "worse")
    assert rows["gated"]["judgement"] == "does not apply" and "model.cell" in rows["gated"]["why"]
    written = list(csv.DictReader((sweep / "comparison.csv").read_text().splitlines(True)))
    assert [row["remedy"] for row in written] == list(rows) and written[0]["judgement"] == "baseline"
    results = list(csv.DictReader((sweep / "results.csv").read_text().splitlines(True)))
    assert [row["verdict"] for row in results].count("does not apply") == 3
    table = result.out[result.out.index("remedies, ") :]
    assert table.index("none ") < table.index("cured") < table.index("does not apply")
    assert (
        "[he_init,clip_norm]: clip none -> norm, clip.max_norm 1.0, clip.norm_type 2.0, model.init too_large -> he"
        in table
    )


@pytest.mark.slow
def test_a_sweep_over_anything_else_is_not_compared(gradlab: Commands, tmp_path: Path) -> None:
    short = ["trainer.epochs=1", "data.samples=64", "model.layers=2", "model.width=8", "trainer.progress=none"]
    result = gradlab("-m", *short, "+remedy=lower_lr", "seed=0,1", cwd=tmp_path)
    assert result.code == 0 and "remedies, " not in result.out, result
    assert not list(tmp_path.rglob("comparison.*"))
