"""Maps: edges, boundaries, sensitivity and recommendation on grids whose answers are known."""

import csv
import json
import math
import shlex
from pathlib import Path

import numpy as np
import pytest
import sweeps
from forked import Commands
from hypothesis import given, settings
from hypothesis import strategies as st

from gradlab.base.option import Invalid
from gradlab.cli.map import main
from gradlab.runs.outcome_class import STABLE
from gradlab.runs.record import RunRecord
from gradlab.sweep.maps import sweep_map
from gradlab.sweep.maps.axis import axis_of, choose_axes
from gradlab.sweep.maps.grid import CAP, Grid, grids, limits
from gradlab.sweep.maps.recommendation import recommend, summarize_rows
from gradlab.sweep.maps.stability import boundary, row_edge, sensitivity, widths
from gradlab.sweep.maps.sweep_map import shown
from gradlab.sweep.results import read

LRS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0]
NAN = math.nan


def grid(folder: Path) -> Grid:
    rows = read(folder)
    (made,) = grids(rows, *choose_axes(rows))
    return made


@given(st.integers(0, 8), st.integers(0, 8))
def test_the_edge_lies_between_what_is_stable_and_what_is_not(low: int, high: int) -> None:
    x, stable = np.array(LRS), np.array([float(low <= i < high) for i in range(8)])
    found = row_edge(x, stable)
    if low >= high:
        assert found.stable is None and found.unstable == LRS[0] and found.value is None
    else:
        assert found.stable == LRS[high - 1] and found.unstable == (LRS[high] if high < 8 else None)
        assert found.value is None if high == 8 else LRS[high - 1] < found.value < LRS[high]  # type: ignore[operator]
    assert found.islands == 0


def test_an_edge_is_told_with_what_makes_it_doubtful() -> None:
    x = np.array(LRS)
    found = row_edge(x, np.array([1, 1, 0, 1, 1, 0, 0, 0.0]))
    assert (found.stable, found.unstable, found.islands) == (0.02, 0.05, 2)
    assert row_edge(x, np.array([1, 1, 2 / 3, 0, 0, 0, 0, 0])).stable == 0.02, "not under every seed"
    found = row_edge(x, np.array([1, 1, NAN, NAN, 0, 0, 0, 0]))
    assert (found.stable, found.unstable) == (0.02, 0.2) and found.value == pytest.approx(math.sqrt(0.004))
    assert row_edge(x, np.full(8, NAN)) == row_edge(x[:0], np.array([]))
    assert row_edge(np.array([1.0, 3.0]), np.array([1.0, 0.0]), log=False).value == 2.0


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0, NAN]), min_size=5, max_size=5), min_size=1, max_size=6))
def test_the_boundary_is_every_side_between_stable_and_unstable_once(cells: list[list[float]]) -> None:
    stable = np.array(cells)
    expected = set()
    for i, j in np.ndindex(*stable.shape):
        for di, dj in ((0, 1), (1, 0)):
            if i + di < stable.shape[0] and j + dj < 5 and {stable[i, j], stable[i + di, j + dj]} == {0.0, 1.0}:
                expected.add((j + dj, i + di, j + 1, i + 1))
    found: list[tuple[float, ...]] = []
    for x0, y0, x1, y1 in boundary(stable):
        assert (x0 == x1) != (y0 == y1)
        steps = int(x1 - x0 + y1 - y0)
        dx, dy = (x1 - x0) / steps, (y1 - y0) / steps
        found += [(x0 + k * dx, y0 + k * dy, x0 + (k + 1) * dx, y0 + (k + 1) * dy) for k in range(steps)]
    assert sorted(found) == sorted(expected)


def test_the_sensitivity_is_the_mean_over_an_even_grid_of_what_is_lost() -> None:
    places, loss = np.arange(6.0), np.array([1.9, 1.2, 0.4, 0.5, math.inf, 7.0])
    expected = np.mean([1.9, 1.2, 0.4, 0.5, 2.0, 2.0]) - 0.4
    assert sensitivity(places, loss, 2.0) == pytest.approx(expected)
    assert sensitivity(places + 3, loss + 1, 3.0) == pytest.approx(expected), "of places and of levels it knows nothing"
    assert sensitivity(places, np.full(6, 0.3), 2.0) == 0
    assert sensitivity(places, np.full(6, math.inf), 2.0) == 0
    assert math.isnan(sensitivity(places, np.array([1.0, *[NAN] * 5]), 2.0))


def test_rates_that_stand_closer_count_less() -> None:
    assert widths(np.array([0, 1, 2.0])) == pytest.approx([1, 1, 1])
    fine = np.concatenate([np.arange(0, 5, 1.0), np.arange(5, 10, 0.01)])
    step = np.where(fine < 5, 0.0, 1.0)
    assert sensitivity(fine, step, 2.0) == pytest.approx(0.5, abs=0.06)
    assert np.mean(step) > 0.98


def test_the_sensitivity_comes_with_its_spread_and_without_what_has_not_ended(tmp_path: Path) -> None:
    (one,) = summarize_rows(grid(sweeps.sweep(tmp_path / "one", LRS, [1], lambda y, seed: 0.5)))
    assert one.sensitivity > 0 and math.isnan(one.sensitivity_spread) and "±" not in shown(one)["sensitivity"]
    edges = {0: 0.1, 1: 0.5, 2: 1.0}
    several = sweeps.sweep(tmp_path / "several", LRS, [1], lambda y, seed: edges[seed], seeds=3)
    (row,) = summarize_rows(grid(several))
    alone = [
        summarize_rows(grid(sweeps.sweep(tmp_path / str(e), LRS, [1], lambda y, s, e=e: e)))[0] for e in edges.values()
    ]
    assert row.sensitivity_spread == pytest.approx(np.std([one.sensitivity for one in alone], ddof=1))
    assert shown(row)["sensitivity"].endswith(f" ± {row.sensitivity_spread:.2g}")
    stopped = sweeps.sweep(tmp_path / "stopped", LRS, [1], lambda y, seed: 0.5)
    for name in ("0", "7"):
        (stopped / name / "diagnosis.json").unlink()
    (left,) = summarize_rows(grid(stopped))
    (without,) = summarize_rows(grid(sweeps.sweep(tmp_path / "without", LRS[1:7], [1], lambda y, seed: 0.5)))
    assert left.sensitivity == pytest.approx(without.sensitivity)


def test_a_sweep_of_which_nothing_ended_has_no_map(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = sweeps.sweep(tmp_path / "s", LRS, [1], lambda y, seed: 0.5)
    for job in folder.iterdir():
        (job / "diagnosis.json").unlink()
    rows = read(folder)
    assert {row["outcome"] for row in rows} == {"stopped"}
    assert sweep_map.sweep_ended(folder, rows) is None and capsys.readouterr().out == ""


def test_axes_are_the_rate_and_then_the_field_of_most_values(tmp_path: Path) -> None:
    rows = read(sweeps.sweep(tmp_path / "s", [0.1, 1.0], [1, 10, 100], lambda y, seed: 0.5, seeds=2))
    assert choose_axes(rows) == ("optimizer.lr", "clip.max_norm")
    assert choose_axes(rows, x="clip.max_norm") == ("clip.max_norm", "optimizer.lr")
    assert choose_axes(rows, y="seed") == ("optimizer.lr", "seed")
    backwards = [{**row, "width": row["optimizer.lr"]} for row in reversed(rows)]
    assert axis_of(backwards, "width").values == (0.1, 1.0), "numbers in their order"
    for given_, says in (({"x": "foo"}, "was not swept"), ({"x": "seed", "y": "seed"}, "another field")):
        with pytest.raises(Invalid, match=says):
            choose_axes(rows, **given_)
    rows = read(sweeps.sweep(tmp_path / "r", [0.1, 1.0], ["none", "clip"], lambda y, seed: 0.5, y="+remedy"))
    assert choose_axes(rows) == ("optimizer.lr", "remedy")
    widths_and_names = read(
        sweeps.sweep(tmp_path / "w", [8, 16], [*"abcde"], lambda y, seed: 9, y="+remedy", x="width")
    )
    assert choose_axes(widths_and_names) == ("width", "remedy"), "numbers before names, however many"
    (made,) = grids(rows, "optimizer.lr", "remedy")
    assert made.y.values == ("none", "clip") and not made.y.numeric, "in the order of the sweep"


def test_fields_that_are_no_axis_are_slices_and_seeds_are_repeats(tmp_path: Path) -> None:
    rows = read(sweeps.sweep(tmp_path / "s", LRS, [1, 10], lambda y, seed: 0.1 * y, seeds=3))
    found = grids(rows, "optimizer.lr", None)
    assert [g.slice for g in found] == [{"clip.max_norm": 1}, {"clip.max_norm": 10}]
    assert all(g.shape == (1, 8) and all(len(c.jobs) == 3 for c in g.points.values()) for g in found)
    assert [row_edge(np.array(LRS), g.array("stable")[0]).stable for g in found] == [0.1, 1.0]


def test_a_point_is_as_good_as_its_worst_repeat(tmp_path: Path) -> None:
    made = grid(sweeps.sweep(tmp_path / "s", LRS, [1, 10], lambda y, seed: 0.1 if seed == 2 else 0.5, seeds=3))
    at = LRS.index(0.2)
    cell = made.points[0, at]
    assert (cell.outcome, cell.stable, cell.learnt) == ("exploded", pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert cell.metric("loss/final") == np.median([row["loss/final"] for row in cell.jobs])
    assert cell.metric("survived") == 1.0, "the median of 1, 1 and 10 of 20"
    assert summarize_rows(made)[0].edge.stable == 0.1


@given(st.lists(st.integers(0, 8), min_size=1, max_size=3), st.sampled_from([1.0, 2.0, 5.0]))
@settings(max_examples=12, deadline=None)
def test_what_is_recommended_learns_and_keeps_its_margin(
    tmp_path_factory: pytest.TempPathFactory, ends: list[int], margin: float
) -> None:
    ys = [10.0**i for i in range(len(ends))]
    edges = dict(zip(ys, [LRS[e - 1] if e else 0.0 for e in ends]))
    folder = sweeps.sweep(tmp_path_factory.mktemp("s") / "s", LRS, ys, lambda y, seed: edges[y], updates=25)
    rows = read(folder)
    (made,) = grids(rows, "optimizer.lr", "clip.max_norm" if len(ends) > 1 else None)
    best = recommend(made, summarize_rows(made, margin), margin)
    if best.cell is None:
        assert all(e <= learns_from() for e in ends)
        return
    lr, y = best.values["optimizer.lr"], best.values.get("clip.max_norm", 1.0)
    assert best.cell.outcome == "learnt" and lr <= edges[y]
    smallest_unstable = next((v for v in LRS if v > edges[y]), math.inf)
    middle = math.sqrt(edges[y] * smallest_unstable)
    if math.isinf(middle):  # no edge is known: then the lowest loss, in `sweeps.sweep` that of the largest up to 1
        assert lr == 1.0
        return
    keeping = [v for v in LRS if v * margin <= middle * (1 + 1e-9) and v >= LRS[learns_from()]]
    assert lr == (keeping[-1] if keeping else LRS[learns_from()])


def learns_from() -> int:
    """Index of the first rate of LRS that learns by itself in `sweeps.sweep`: 5% of 2.0 over the last fifth."""
    return next(i for i, lr in enumerate(LRS) if lr >= 0.11)


def test_the_margin_the_edge_and_what_moves_it_are_said(tmp_path: Path) -> None:
    made = grid(sweeps.sweep(tmp_path / "s", LRS, [1, 10, 100], lambda y, seed: {1: 0.2, 10: 0.5, 100: 1.0}[y]))
    best = recommend(made, summarize_rows(made))
    assert best.values == {"optimizer.lr": 0.5, "clip.max_norm": 100}
    assert "a factor 2 or more (2.8) below the edge of stability, between 1 and 2" in best.says
    assert "clip.max_norm moves the edge from 0.32 (at 1) to 1.4 (at 100)" in best.says
    assert "the lowest of the map is 1.12 at optimizer.lr=1, clip.max_norm=100" in best.says
    still = grid(sweeps.sweep(tmp_path / "t", LRS, [1, 10, 100], lambda y, seed: 0.5 if y < 50 else 1.0))
    assert "by no more than a step of the sweep" in recommend(still, summarize_rows(still)).says
    none = grid(sweeps.sweep(tmp_path / "v", LRS, [1, 10], lambda y, seed: 0.0))
    assert recommend(none, summarize_rows(none)).cell is None


def test_the_direction_in_which_an_edge_may_lie_is_said_by_the_name_of_its_axis(tmp_path: Path) -> None:
    def says(name: str, x: str, lost: list[float] = [], unjudged: list[float] = []) -> str:  # noqa: B006
        for i, value in enumerate((0.1, 0.2, 0.4, 0.8, 1.6)):
            ill = {"verdict": "exploding", "status": "failed"} if value in lost else {}
            ill = {"verdict": "interrupted", "status": "interrupted"} if value in unjudged else ill
            sweeps.job(tmp_path / name / str(i), [f"{x}={value}"], [2.0] * 10 + [1.0] * 20, **ill)
        (made,) = grids(read(tmp_path / name), x, None)
        return recommend(made, summarize_rows(made)).says

    assert "the edge, which lies above optimizer.lr=1.6: try higher ones" in says("a", "optimizer.lr")
    assert "the edge, which lies above optimizer.lr=1.6" in says("b", "optimizer.lr", lost=[0.1]), "fp16 underflows"
    assert "nothing above optimizer.lr=0.4 was judged" in says("c", "optimizer.lr", unjudged=[0.8, 1.6])
    shorter = says("d", "schedule.warmup", lost=[0.1, 0.2])
    assert "unstable at schedule.warmup=0.2 and below; stable up to 1.6" in shorter
    bounded = says("e", "optimizer.momentum")
    assert "reaches no edge from optimizer.momentum=0.1 to 1.6" in bounded and "higher" not in shorter + bounded


def points(folder: Path, outcomes: dict[float, str]) -> Grid:
    """A sweep over the rate alone, whose jobs are of the outcomes asked for."""
    losses = {"learnt": [2.0] * 10 + [1.0] * 20, "unlearnt": [2.0] * 30, "exploded": [2.0] * 10 + [9.0] * 20}
    for i, (lr, outcome) in enumerate(outcomes.items()):
        verdict = "exploding" if outcome == "exploded" else "healthy"
        sweeps.job(folder / str(i), [f"optimizer.lr={lr}"], losses[outcome], verdict=verdict)
    return grids(read(folder), "optimizer.lr", None)[0]


def test_where_learning_ends_before_stability_does_the_margin_is_from_there(tmp_path: Path) -> None:
    made = points(tmp_path / "a", {0.1: "learnt", 0.2: "learnt", 0.5: "unlearnt", 1.0: "unlearnt", 2.0: "exploded"})
    (line,) = summarize_rows(made)
    assert (line.edge.stable, line.learning.stable, line.learning.unstable) == (1.0, 0.2, 0.5)
    best = recommend(made, [line])
    assert best.values == {"optimizer.lr": 0.1} and "the edge of learning, between 0.2 and 0.5" in best.says


def test_nothing_beyond_the_edge_is_recommended(tmp_path: Path) -> None:
    made = points(tmp_path / "a", {0.1: "unlearnt", 0.2: "exploded", 0.5: "learnt", 1.0: "learnt", 2.0: "exploded"})
    assert recommend(made, summarize_rows(made)).cell is None
    made = points(tmp_path / "b", {0.1: "learnt", 0.2: "exploded", 0.5: "learnt", 1.0: "exploded"})
    assert (
        recommend(made, summarize_rows(made), 1.0).values == {"optimizer.lr": 0.1}
        and summarize_rows(made)[0].edge.islands == 1
    )


def test_rows_of_a_sparse_map_take_their_nearest_point_and_those_of_another_stay_missing(tmp_path: Path) -> None:
    lrs, ys = [10.0 ** (i / 4) for i in range(-8, 4)], [10.0**i for i in range(8)]
    rows = read(sweeps.sweep(tmp_path / "s", lrs, ys, lambda y, seed: 0.1))
    draws = np.random.default_rng(0)
    kept = [row for row in rows if draws.random() < 0.3]
    (made,) = grids(kept, "optimizer.lr", "clip.max_norm")
    assert made.sparse
    source, run = made.source(), np.array(sorted(made.points))
    for i, j in np.ndindex(*made.shape):
        distances = ((run - [i, j]) ** 2).sum(1)
        assert ((source[i, j] - [i, j]) ** 2).sum() == distances.min()
    (whole,) = grids(rows[:-5], "optimizer.lr", "clip.max_norm")
    assert not whole.sparse and np.isnan(whole.array("stable")).sum() == 5


def test_colours_leave_out_how_lost_a_lost_run_is(tmp_path: Path) -> None:
    sweeps.job(tmp_path / "0", ["a=1"], [2.0] * 10 + [1.0] * 30)
    sweeps.job(tmp_path / "1", ["a=2"], [2.0] * 10 + [1e9] * 30, verdict="diverged")
    found = limits(grids(read(tmp_path), "a", None), "loss/final")
    assert found is not None and (found.low, found.high, found.capped) == (1.0, CAP * 2.0, True)


def test_figures_show_each_point_in_the_colour_of_its_class(tmp_path: Path) -> None:
    import matplotlib.image
    from matplotlib.colors import to_rgb

    from gradlab.runs.outcome_class import OUTCOMES
    from gradlab.sweep.maps.figure import draw

    made = grid(sweeps.sweep(tmp_path / "s", LRS, [1, 10, 100], lambda y, seed: 0.5))
    png, svg = draw(made, tmp_path / "map", "loss/final")
    picture = matplotlib.image.imread(png)[..., :3]
    colours = {o.name: np.abs(picture - np.array(to_rgb(o.colour))).max(-1) < 0.01 for o in OUTCOMES}
    assert not colours["collapsed"].any() and not colours["diverged"].any()
    exploded, learnt = colours["exploded"], colours["learnt"]
    right = picture.shape[1] // 2  # the panel of outcomes is the left one
    top = slice(0, int(picture.shape[0] * 0.8))  # above the legend
    assert np.nonzero(exploded[top, :right])[1].min() > np.nonzero(learnt[top, :right])[1].max()
    assert svg.read_text().startswith("<?xml")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = sweeps.sweep(tmp_path / "s", LRS, [1, 10], lambda y, seed: 0.5, seeds=2)
    assert main([str(folder), "--margin", "4", "--metric", "loss/final"]) == 0
    said = capsys.readouterr().out
    assert "map of optimizer.lr (8) x clip.max_norm (2): 4 learnt" in said
    assert "no value that learns under all 2 repeats keeps a factor 4; this one is 3.5 below" in said
    assert "python -m gradlab model=lstm optimizer.lr=0.2 clip.max_norm=1 expect=healthy" in said
    content = json.loads((folder / "map.json").read_text())
    assert content["x"]["values"] == LRS and len(content["slices"][0]["points"]) == 16
    assert [row["edge"]["stable"] for row in content["slices"][0]["rows"]] == [0.5, 0.5]
    assert {p.name for p in (folder / "figures").iterdir()} == {"map.png", "map.svg"}
    assert main([str(folder), "--x", "clip.max_norm", "--metric", "eval/loss"]) == 0
    assert json.loads((folder / "map.json").read_text())["y"]["name"] == "optimizer.lr"


@pytest.mark.slow
def test_a_sweep_over_one_field_is_a_curve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lrs, quick = [0.1, 0.5, 1.0], ["--metric", "eval/loss"]
    folder = sweeps.sweep(tmp_path / "s", lrs, ["a", "b"], lambda y, seed: 0.5, y="precision")
    assert main([str(folder), *quick]) == 0 and (folder / "figures" / "curves.png").is_file()
    one = sweeps.sweep(tmp_path / "t", lrs, [1], lambda y, seed: 0.5)
    assert main([str(one), *quick]) == 0 and (one / "figures" / "curves.svg").is_file()
    assert "map of optimizer.lr (3): " in capsys.readouterr().out


def test_folders_and_flags_that_are_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = sweeps.sweep(tmp_path / "s", [0.1, 1.0], [1], lambda y, seed: 0.5)
    seeds = tmp_path / "seeds"
    for seed in (0, 1):
        sweeps.job(seeds / str(seed), [f"seed={seed}"], [1.0])
    for arguments, says in [
        ([str(tmp_path / "none")], "no such folder"),
        ([str(folder / "0")], "must be the folder of a sweep (it holds 1 jobs)"),
        ([str(folder), "--x", "clip.max_norm"], "--x=clip.max_norm: was not swept; there are optimizer.lr"),
        ([str(folder), "--metric", "foo"], "--metric=foo: must be one of outcome, "),
        ([str(folder), "--margin", "0.5"], "--margin=0.5: must be >= 1"),
        ([str(seeds)], "must sweep a field other than seed"),
        ([], "see python -m gradlab.map --help"),
    ]:
        assert main(arguments) == 2, arguments
        error = capsys.readouterr().err
        assert says in error and error.count("\n") == 1


def test_a_sweep_ends_with_its_table_its_map_and_a_recommendation_that_is_healthy(
    gradlab: Commands, tmp_path: Path
) -> None:
    short = ["model.layers=1", "model.width=16", "data.samples=256", "trainer.epochs=10", "trainer.progress=none"]
    swept = ["optimizer=sgd", "optimizer.lr=0.1,1,1e4", "clip=norm", "clip.max_norm=0.1,10", "expect=any"]
    lanes = ["hydra/launcher=vectorized", "hydra.launcher.workers=0"]
    result = gradlab("-m", *short, *swept, *lanes, cwd=tmp_path)
    assert result.code == 0, result
    (folder,) = tmp_path.glob("outputs/run/sweep*")
    assert (folder / "report.html").is_file() and (folder / "figures" / "map.png").is_file()
    at = result.out.index("recommended: ")
    command = shlex.split(result.out[at:].splitlines()[1])
    again = gradlab(*command[3:], cwd=tmp_path)
    assert command[:3] == ["python", "-m", "gradlab"] and again.code == 0, again
    assert f"report: {folder.relative_to(tmp_path)}/report.html\n" in result.out
    table = list(csv.DictReader((folder / "results.csv").read_text().splitlines(True)))
    assert [row["job"] for row in table] == [*"012345"]
    values = [(float(row["optimizer.lr"]), float(row["clip.max_norm"])) for row in table]
    assert values == [(lr, bound) for lr in (0.1, 1.0, 1e4) for bound in (0.1, 10.0)]
    assert {"overrides", "verdict", "eval/loss", "exit_code", "outcome", "loss/final", "why"} <= set(table[0])
    rows = read(folder)
    assert rows[0]["outcome"] in STABLE and rows[5]["outcome"] not in STABLE
    losses = [line["train/loss"] for line in RunRecord(folder / "0").updates]
    assert rows[0]["updates"] == rows[0]["planned"] == len(losses)
    assert rows[0]["loss/final"] == np.median(losses[-len(losses) // 5 :]) == float(table[0]["loss/final"])
    for row in rows:  # written when a run ends; the same from its metrics, as of a run of an older version
        path = folder / row["job"] / "diagnosis.json"
        told = json.loads(path.read_text())
        del told["measured"]
        path.write_text(json.dumps(told))
    assert read(folder) == rows


def test_a_sweep_over_seeds_or_two_rates_draws_none(tmp_path: Path) -> None:
    from gradlab.sweep.maps.sweep_map import worth_a_map

    assert not worth_a_map(read(sweeps.sweep(tmp_path / "a", [0.1, 1.0], [1], lambda y, seed: 0.5, seeds=3)))
    assert not worth_a_map(read(sweeps.sweep(tmp_path / "b", [0.1], [*"abcd"], lambda y, seed: 0.5, y="+remedy")))
    assert worth_a_map(read(sweeps.sweep(tmp_path / "c", [0.1, 0.2, 0.3], [1], lambda y, seed: 0.5)))
    assert worth_a_map(read(sweeps.sweep(tmp_path / "d", [0.1, 0.2], [1, 2], lambda y, seed: 0.5)))
