"""The search for edges against boundaries that are known: along one line, over seeds, and what moves them."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradlab.base.option import Invalid
from gradlab.runs.outcome_class import CLASS_OF_VERDICT
from gradlab.sweep.grid.axes import axes, label, without
from gradlab.sweep.search import edge_effects, edge_report
from gradlab.sweep.search.boundary_search import BoundarySearch
from gradlab.sweep.search.edge import Edge, ask, edge
from gradlab.sweep.search.judge import FinishedJob, learns, lost, stable
from gradlab.sweep.search.lattice import Lattice, lattice
from gradlab.sweep.search.options import BoundaryOption
from gradlab.sweep.search.rounds import conduct

Truth = Callable[[float], bool | None]


def searched(on: Lattice, truth: Truth) -> tuple[dict[int, bool | None], list[int]]:
    """What was tried until the search ended, and how many values each round had."""
    known: dict[int, bool | None] = {}
    rounds = []
    while wanted := ask(known, on):
        assert not known.keys() & set(wanted) and len(set(wanted)) == len(wanted), "nothing is run twice"
        rounds.append(len(wanted))
        known |= {p: truth(on.value(p)) for p in wanted}
        assert len(rounds) < 200
    return known, rounds


def found(truth: Truth, start: float | None = 0.1, **settings: Any) -> tuple[Edge, Lattice, dict[int, bool | None]]:
    on = lattice(BoundaryOption(**settings), start, False)
    known, _ = searched(on, truth)
    return edge(known), on, known


@given(st.floats(-4, 4), st.floats(-3, 3), st.floats(1.005, 3), st.integers(1, 9), st.integers(0, 4))
@settings(max_examples=200, deadline=None)
def test_the_edge_is_found_to_the_tolerance_wherever_the_search_begins(
    true: float, start: float, tolerance: float, points: int, checks: int
) -> None:
    truth, more = 10**true, {"tolerance": tolerance, "points_per_round": points, "checks": checks, "doublings": 7}
    e, on, _ = found(lambda v: v <= truth, 10**start, **more)
    assert e.stable is not None and e.first_unstable == e.stable + 1 and not e.again and not e.before
    assert on.value(e.stable) <= truth < on.value(e.first_unstable)
    assert on.value(e.first_unstable) / on.value(e.stable) <= tolerance * 1.00001
    e, on, _ = found(lambda v: v >= truth, 10**start, edge="smallest", **more)
    assert e.stable is not None and e.first_unstable is not None
    assert on.value(e.first_unstable) < truth <= on.value(e.stable) <= on.value(e.first_unstable) * tolerance * 1.00001


@given(st.floats(0.0001, 0.9999), st.integers(1, 9), st.sampled_from(["largest", "smallest"]))
@settings(max_examples=100, deadline=None)
def test_between_bounds_on_a_linear_scale(truth: float, points: int, which: str) -> None:
    down = which == "smallest"
    more = {"scale": "linear", "low": 0.0, "high": 1.0, "tolerance": 0.01, "points_per_round": points, "edge": which}
    e, on, known = found(lambda v: (v >= truth) if down else (v <= truth), None, **more)
    assert (
        e.stable is not None
        and e.first_unstable is not None
        and abs(on.value(e.first_unstable) - on.value(e.stable)) <= 0.010001
    )
    assert (
        min(on.value(e.first_unstable), on.value(e.stable))
        <= truth
        <= max(on.value(e.first_unstable), on.value(e.stable))
    )
    assert {on.value(p) for p in known} >= {0.0, 1.0} and all(0 <= on.value(p) <= 1 for p in known)


def test_bisection_takes_the_logarithm_of_the_range_and_more_points_a_round_take_fewer_rounds() -> None:
    option = {"low": 1e-4, "high": 1.0, "tolerance": 1.01, "checks": 0}
    on = lattice(BoundaryOption(**option), None, False)
    known, rounds = searched(on, lambda v: v < 0.0123)
    assert len(known) == sum(rounds) <= 2 + math.ceil(math.log2(926)) and max(rounds[1:]) == 1
    on = lattice(BoundaryOption(**option, points_per_round=9), None, False)
    _, fewer = searched(on, lambda v: v < 0.0123)
    assert len(fewer) <= 4 and max(fewer[1:]) <= 9


@pytest.mark.parametrize(
    ("truth", "settings", "expected"),
    [
        (lambda v: True, {"low": 0.01, "high": 10.0}, (10.0, None)),
        (lambda v: False, {"low": 0.01, "high": 10.0}, (None, 0.01)),
        (lambda v: True, {"doublings": 3}, (0.1 * 16, None)),
        (lambda v: False, {"doublings": 3}, (None, 0.1 / 16)),
        (lambda v: True, {"high": 3.0}, (3.0, None)),
        (lambda v: v < 1e-3, {"low": 0.01}, (None, 0.01)),
    ],
)
def test_a_bracket_without_an_edge_says_how_far_was_looked(
    truth: Truth, settings: dict[str, Any], expected: tuple[float | None, float | None]
) -> None:
    e, on, _ = found(truth, **settings)
    for position, value in zip((e.stable, e.first_unstable), expected, strict=True):
        assert (position is None) == (value is None)
        assert position is None or on.value(position) == pytest.approx(value, rel=0.12)


def test_a_second_edge_is_noticed_and_the_first_is_the_answer() -> None:
    def truth(v: float) -> bool:
        return v < 0.2 or 1 < v < 3

    e, on, _ = found(truth, low=1e-3, high=100.0, checks=9)
    assert (
        e.stable is not None and e.first_unstable is not None and on.value(e.stable) < 0.2 <= on.value(e.first_unstable)
    )
    assert e.again and all(1 < on.value(p) < 3 for p in e.again)


@given(st.floats(0.02, 0.5), st.floats(1.5, 3.0))
@settings(max_examples=50, deadline=None)
def test_a_gap_is_never_missed_that_is_wider_than_the_checks_leave(where: float, wide: float) -> None:
    """Lost within the stable range, over more than a tenth of what is tried on a logarithmic scale."""
    high = 100.0
    e, on, _ = found(lambda v: v < 10 and not where <= v <= where * wide**2, low=1e-2, high=high, checks=19)
    assert e.stable is not None and on.value(e.stable) < where and e.again


def test_values_that_do_not_train_below_are_another_edge() -> None:
    """As hydra.sweeper.judge=learns sees learning rates: too low, right, too high."""
    for start in (1e-5, 0.01, 50.0):
        e, on, _ = found(lambda v: 1e-3 < v < 0.3, start, doublings=6)
        assert (
            e.stable is not None
            and e.first_unstable is not None
            and on.value(e.stable) < 0.3 <= on.value(e.first_unstable)
        )
        e, on, _ = found(lambda v: 1e-3 < v < 0.3, start, doublings=6, edge="smallest")
        assert (
            e.stable is not None
            and e.first_unstable is not None
            and on.value(e.first_unstable) <= 1e-3 < on.value(e.stable)
        )


def test_values_that_give_no_verdict_end_the_search_on_that_side() -> None:
    e, on, known = found(lambda v: True if v < 1 else None, 0.5, scale="linear", tolerance=0.1)
    assert e.first_unstable is None and e.stable is not None and None in known.values()
    assert 0.9 <= on.value(e.stable) < 1, "to the tolerance"
    assert found(lambda v: None)[0] == Edge(None, None)


@given(st.floats(0.5, 60), st.integers(1, 40))
@settings(max_examples=50, deadline=None)
def test_whole_numbers(truth: float, start: int) -> None:
    for scale, tolerance in (("linear", 1.0), ("log", 1.1)):
        on = lattice(BoundaryOption(field="model.layers", scale=scale, tolerance=tolerance, doublings=7), start, True)
        known, _ = searched(on, lambda v: v <= truth if v >= 1 else None)
        assert all(isinstance(on.value(p), int) for p in known)
        e = edge(known)
        if truth >= 1:
            assert e.stable is not None and (scale == "log" or on.value(e.stable) == math.floor(truth))
        if e.stable is not None and e.first_unstable is not None:
            assert on.value(e.stable) <= truth < on.value(e.first_unstable)


@pytest.mark.parametrize(
    ("settings", "start", "says"),
    [
        ({}, None, "low"),
        ({}, 0.0, "low"),
        ({"scale": "linear", "low": 0.5}, 1.0, "whole"),
        ({"scale": "linear", "tolerance": 1.5}, 1.0, "tolerance"),
    ],
)
def test_what_cannot_be_searched_is_refused(settings: dict[str, Any], start: float | None, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        lattice(BoundaryOption(**settings), start, "scale" in settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"tolerance": 1.0},
        {"tolerance": math.nan},
        {"tolerance": 0.0, "scale": "linear"},
        {"low": 0.0},
        {"low": 2.0, "high": 1.0},
        {"high": math.inf},
        {"edge": "middle"},
        {"judge": "verdict"},
        {"seeds": [1, 1]},
        {"seeds": []},
        {"points_per_round": 0},
        {"doublings": -1},
        {"checks": -1},
        {"max_runs": 0},
        {"scale": "cubic"},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        BoundaryOption(**settings)


def told(verdict: str | None, status: str = "completed", first: float = 1.0, last: float = 0.5, **rest: Any) -> Any:
    critical = verdict not in (None, "healthy", "small_but_healthy")
    findings = [{"code": verdict, "severity": "critical"}] if critical else []
    content = {
        "verdict": verdict,
        "ill": critical,
        "outcome": {"status": status},
        "evidence": {"loss_first": first, "loss_last": last},
        "findings": findings,
    }
    content |= rest
    return content | {"lost": lost(content)}


def test_stable_means_completed_with_nothing_lost() -> None:
    assert stable(told("healthy")) is True and stable(told("vanishing")) is True and stable(told("stalled")) is True
    for verdict in CLASS_OF_VERDICT:
        assert stable(told(verdict)) is False
    assert stable(told("healthy", "failed")) is False
    assert stable(told("healthy", last="NaN")) is False  # type: ignore[arg-type]
    later = [{"code": "vanishing", "severity": "critical"}, {"code": "diverged", "severity": "critical"}]
    assert stable(told("vanishing", findings=later)) is False
    assert stable(told("healthy", findings=[{"code": "overflow_fp16", "severity": "warning"}])) is True
    assert stable(told("diverged", "interrupted")) is None
    assert stable({}) is None and stable({"verdict": None, "sentence": "x", "lost": False}) is None


def test_lost_are_the_verdicts_that_tell_of_numbers_lost() -> None:
    """Every rule's verdict is on one side or the other: a new rule has to be placed here."""
    from gradlab.diagnosis.options import Thresholds

    well = {
        *("broken_graph", "saturated_units", "dead_units", "vanishing", "underflow_fp16", "zero_gradient"),
        *("overclipped", "dominant_layer", "update_too_large", "stalled", "not_learning", "memorising", "too_short"),
        *("loss_spike_recovered", "small_but_healthy", "growing_norm", "decaying_norm", "spike", "clip_idle"),
        *("empty_window", "bad_batch", "updates_lost", "unlearnt_term"),
    }
    assert {rule.code for rule in Thresholds().rules()} == well | set(CLASS_OF_VERDICT)


def test_learning_is_stable_not_ill_and_what_the_diagnosis_says() -> None:
    assert learns(told("healthy", learns=True)) is True and learns(told("healthy", learns=False)) is False
    assert learns(told("stalled", learns=True)) is False and learns(told("diverged", learns=True)) is False
    assert learns(told("healthy", "interrupted", learns=True)) is None and learns({}) is None


def test_axes_of_points() -> None:
    points = [("a=1", "+remedy=none", "seed=0"), ("a=1", "+remedy=clip", "seed=0"), ("a=1", "+remedy=clip", "seed=1")]
    assert axes(points) == {"remedy": ["none", "clip"], "seed": ["0", "1"]}
    assert without(points[0], "remedy", "seed") == ("a=1",) and label(points[1], ["remedy"]) == "remedy=clip"


# Real edges at 0.1, 0.2, ...: +remedy=clip moves each by 4, by 4.4 and by 3.6.
TRUE = {("none", s): 0.1 * (1 + s) for s in range(3)}
TRUE |= {("clip", s): 0.1 * (1 + s) * (4, 4.4, 3.6)[s] for s in range(3)}


def report(
    tmp_path: Path, truth: dict[Any, float], remedies: str, **settings: Any
) -> tuple[BoundarySearch, dict[str, Any]]:
    """A search whose runs are stable up to the truth, which may be none (None: no verdict)."""
    import json

    points = [("model=x", f"+remedy={name}") for name in remedies.split(",")]
    search = BoundarySearch(BoundaryOption(**({"seeds": [0, 1, 2], "tolerance": 1.02} | settings)), points, 0.1, False)

    def run(jobs: list[tuple[str, ...]]) -> list[FinishedJob]:
        seen = []
        for i, job in enumerate(jobs):
            chosen = {o.lstrip("+").split("=")[0]: o.split("=")[1] for o in job}
            edge_of = truth[chosen["remedy"], int(chosen["seed"])]
            well = "healthy" if float(chosen["optimizer.lr"]) <= edge_of else "diverged"
            seen.append(FinishedJob(str(i), told(None if math.isnan(edge_of) else well, sentence="refused")))
        return seen

    said: list[str] = []
    ended = conduct(search, run, search.option.max_runs, said.append)
    edge_report.report(tmp_path, search, ended)
    return search, json.loads((tmp_path / "edges.json").read_text()) | {"rounds": said}


def test_edges_over_seeds_and_what_moves_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, told = report(tmp_path, TRUE, "none,clip")
    none, clip = told["points"]
    assert [none["lowest"], none["edge"], none["highest"]] == pytest.approx([0.1, 0.2, 0.3], rel=0.02)
    assert [e["stable"] for e in clip["edges"]] == pytest.approx([0.4, 0.88, 1.08], rel=0.02)
    (effect,) = told["effects"]
    assert effect["mean"] == pytest.approx(math.exp(np.mean(np.log([4, 4.4, 3.6]))), rel=0.02)
    assert effect["low"] < 3.6 and effect["high"] > 4.4 and effect["seeds"] == 3 and effect["direction"] == 1
    assert (effect["axis"], effect["value"], effect["against"]) == ("remedy", "clip", "none")
    assert "moves it up" in capsys.readouterr().out
    header, *rows = (tmp_path / "edges.csv").read_text().splitlines()
    assert header.startswith("point,edge,lowest,highest,seeds,runs") and len(rows) == 2


def test_the_interval_is_students_widened_by_the_tolerance() -> None:
    from scipy.stats import ttest_1samp

    on = Lattice(1.0, 1.1)
    steps = np.array([10.0, 14.0, 11.0])
    moved = edge_effects.paired_effect([(3.0, 3.0 + s, 99) for s in steps], on)
    interval = ttest_1samp(steps * math.log(1.1), 0).confidence_interval(0.95)
    assert moved is not None and moved.low is not None and moved.high is not None
    assert math.log(moved.low) == pytest.approx(interval.low - math.log(1.1), rel=1e-3)
    assert math.log(moved.high) == pytest.approx(interval.high + math.log(1.1), rel=1e-3)


@pytest.mark.parametrize(
    ("steps", "direction"),
    [
        ([1, 1, 1], 0),  # within the tolerance
        ([2, 2, 2], 1),
        ([-2, -2, -2], -1),
        ([8, -8, 9], 0),
        ([1], 0),
        ([2], 1),
        ([2, 1], 0),
        ([-2, -3], -1),
    ],
)
def test_an_edge_has_moved_if_it_has_by_more_than_the_tolerance(steps: list[int], direction: int) -> None:
    for on, sign in ((Lattice(1.0, 1.1), 1), (Lattice(1.0, 1 / 1.1), -1), (Lattice(1.0, 0.1, linear=True), 1)):
        moved = edge_effects.paired_effect([(0.0, float(s), 99) for s in steps], on)
        assert moved is not None and moved.direction == direction * sign
        assert (moved.low is None) == (len(steps) < 3)


def test_edges_beyond_what_was_tried_are_bounds_and_not_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    truth = {("none", s): 0.1 for s in range(3)} | {("clip", s): math.inf for s in range(3)}
    truth |= {("bad", s): 0.0 for s in range(3)} | {("refused", s): math.nan for s in range(3)}
    _, told = report(tmp_path, truth, "none,clip,bad,refused", doublings=3)
    _, clip, bad, refused = told["points"]
    assert clip["edge"] is None and clip["shown"][0].startswith(">= 1.") and "at least" in clip["says"][0]
    assert bad["edge"] is None and bad["shown"][0].startswith("< 0.00") and "not stable at any" in bad["says"][0]
    assert refused["shown"] == ["-"] * 3 and "no verdict" in refused["says"][0] and refused["seeds"] == 0
    effects = {e["value"]: e for e in told["effects"]}
    assert effects["clip"]["bound"] == "at least" and effects["clip"]["direction"] == 1
    assert effects["clip"]["mean"] == pytest.approx(16, rel=0.1) and effects["clip"]["high"] is None
    assert effects["bad"]["bound"] == "at most" and effects["bad"]["direction"] == -1
    assert effects["refused"]["mean"] is None and "not comparable" in capsys.readouterr().out


def test_without_a_comparable_baseline_nothing_is_said_to_move(tmp_path: Path) -> None:
    truth = {("none", s): math.inf for s in range(3)} | {("clip", s): 0.5 for s in range(3)}
    _, told = report(tmp_path, truth, "none,clip", doublings=3)
    assert told["effects"][0]["mean"] is None


def test_the_median_of_edges_of_which_some_are_out_of_sight() -> None:
    assert (
        edge_effects.median([1, math.inf, 3]) == 3
        and edge_effects.median([1, 3]) == 2
        and edge_effects.median([-math.inf, 2, 3]) == 2
    )
    assert edge_effects.median([-math.inf, math.inf]) == -math.inf
    assert edge_effects.median([1, math.inf]) == math.inf and edge_effects.median([math.inf, 2, math.inf]) == math.inf


def test_all_points_and_seeds_are_searched_in_the_same_rounds(tmp_path: Path) -> None:
    search, told = report(tmp_path, TRUE, "none,clip", points_per_round=5)
    assert len(search.lines) == 6 and len(told["rounds"]) <= 7
    assert told["rounds"][0].startswith("round 1: 6 runs") and "0 of 6 edges" in told["rounds"][0]


def test_a_budget_ends_the_search_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search, told = report(tmp_path, TRUE, "none,clip", max_runs=20)
    assert sum(len(one.known) for one in search.lines) == 20 and told["ended"] == "max_runs=20 was reached"
    assert "not complete" in capsys.readouterr().out


def test_the_same_search_asks_for_the_same_jobs(tmp_path: Path) -> None:
    asked = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        search, _ = report(tmp_path / name, TRUE, "none,clip")
        asked.append([search.job(one, p) for one in search.lines for p in one.known])
    assert asked[0] == asked[1] and len(set(asked[0])) == len(asked[0])


def test_the_searched_field_may_not_be_swept_and_seeds_are_given_once() -> None:
    with pytest.raises(Invalid, match=r"optimizer\.lr"):
        BoundarySearch(BoundaryOption(), [("optimizer.lr=1",), ("optimizer.lr=2",)], 0.1, False)
    with pytest.raises(Invalid, match="seeds"):
        BoundarySearch(BoundaryOption(seeds=[0]), [("seed=1",)], 0.1, False)
    search = BoundarySearch(BoundaryOption(), [("+data.kwargs.c=0.5", "seed=1"), ("seed=2", "expect=null")], 0.1, False)
    assert [one.seed for one in search.lines] == ["1", "2"]
    appended = BoundarySearch(BoundaryOption(field="data.kwargs.c"), [("+data.kwargs.c=0.5",)], None, False)
    assert appended.ask() == [("+data.kwargs.c=0.5", "expect=any")]
