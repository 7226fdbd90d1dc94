"""Maps refined around boundaries that are known: circle, line, island, noise, none; and what is said of them."""

import json
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweeps import dense

from gradlab.base.errors import Usage
from gradlab.base.option import Invalid
from gradlab.cli.refined_map import asks_for_runs, overrides
from gradlab.sweep.search import map_report
from gradlab.sweep.search.judge import FinishedJob
from gradlab.sweep.search.map_search import FieldRange, MapSearch, parsed
from gradlab.sweep.search.options import QuadtreeOption
from gradlab.sweep.search.quadtree import Corner, ask, at_most, leaves, sample, skipped
from gradlab.sweep.search.rounds import conduct

Truth = Callable[[int, int], Any]


def refined(truth: Truth, resolution: int = 64, coarse: int = 8) -> dict[Corner, Any]:
    tried: dict[Corner, Any] = {}
    while wanted := ask(tried, resolution, coarse):
        assert not tried.keys() & set(wanted) and len(set(wanted)) == len(wanted)
        tried |= {place: truth(*place) for place in wanted}
    return tried


def wrong(truth: Truth, tried: dict[Corner, Any], resolution: int = 64, coarse: int = 8) -> int:
    """Points of the full grid that the map has otherwise than they are."""
    rest = skipped(tried, list(leaves(tried, resolution, coarse)))
    assert len(rest) + len(tried) == (resolution + 1) ** 2
    return sum(truth(*place) != seen for place, seen in rest.items())


@given(st.floats(-0.9, 0.9), st.floats(10, 50), st.floats(10, 30))
@settings(max_examples=30, deadline=None)
def test_lines_and_circles_are_exact_at_a_fraction_of_the_runs(slope: float, offset: float, radius: float) -> None:
    def straight(i: int, j: int) -> bool:
        return i - slope * (j - 32) > offset

    def circle(i: int, j: int) -> bool:
        return (i - 32) ** 2 + (j - 32) ** 2 < radius**2

    for truth in (straight, circle):
        tried = refined(truth)
        assert wrong(truth, tried) <= 2 and len(tried) < 0.25 * 65**2


def test_a_boundary_costs_its_length_and_nothing_else() -> None:
    def refined_to(n: int) -> int:
        """Runs for a circle of the same size in a grid of n cells a side."""
        return len(refined(lambda i, j: (i / n - 0.5) ** 2 + (j / n - 0.5) ** 2 < 0.3**2, n, 16))

    runs = [refined_to(n) for n in (32, 64, 128, 256)]
    assert runs[-1] < 0.05 * 257**2
    grown = [after - before for before, after in pairwise(runs)]
    assert all(1.5 < b / a < 2.5 for a, b in pairwise(grown)), "twice as fine, twice as long"


def test_no_boundary_costs_the_coarse_grid_alone() -> None:
    tried = refined(lambda i, j: "well")
    assert len(tried) == 81 and all(cell.agree for cell in leaves(tried, 64, 8))


def test_a_bulge_through_the_side_of_a_cell_is_followed() -> None:
    """Its corners agree; the points that its neighbour needed on their border do not."""

    def bulge(i: int, j: int) -> bool:
        """All to the left of 8, but for a disc that reaches from there into the cell from (8, 8) to (16, 16)."""
        return i < 8 or (i - 8) ** 2 + (j - 12) ** 2 <= 9

    tried = refined(bulge, 32, 4)
    assert not any(bulge(i, j) for i in (8, 16) for j in (8, 16)) and bulge(8, 12)
    assert wrong(bulge, tried, 32, 4) == 0 and any(8 < i < 16 and 8 < j < 16 for i, j in tried)


def test_more_than_two_classes() -> None:
    def thirds(i: int, j: int) -> str:
        return "a" if i < 20 else "b" if j < 33 else "c"

    assert wrong(thirds, refined(thirds)) == 0


def test_noise_is_refined_everywhere_and_ends() -> None:
    noise = Random(1)
    values = {(i, j): noise.random() < 0.5 for i in range(33) for j in range(33)}
    tried = refined(lambda i, j: values[i, j], 32, 4)
    assert len(tried) > 0.95 * 33**2 and wrong(lambda i, j: values[i, j], tried, 32, 4) < 0.05 * 33**2


def test_the_bound_of_a_share_is_clopper_and_pearsons() -> None:
    from scipy.stats import beta

    for k, n in ((0, 1), (0, 50), (1, 50), (7, 30), (49, 50)):
        assert at_most(k, n) == pytest.approx(beta.ppf(0.95, k + 1, n - k), abs=1e-9)
    assert at_most(50, 50) == 1.0


def test_the_same_points_are_checked_every_time() -> None:
    places = [(i, j) for i in range(20) for j in range(20)]
    assert sample(places, 10) == sample(places[::-1], 10) and len(set(sample(places, 10))) == 10
    assert sample(places[:3], 10) == places[:3]


def run_map(tmp_path: Path, truth: Callable[..., bool], *points: Any, **settings: Any) -> dict[str, Any]:
    """A map whose runs are stable where the truth (of log10 x, log10 y and the other overrides) says so."""
    option = {"x": "optimizer.lr:1e-4:1", "y": "clip.max_norm:0.01:100", "resolution": 32, "coarse": 4} | settings
    search = MapSearch(QuadtreeOption(**option), points or [("clip=norm",)])
    count = 0

    def run(jobs: list[tuple[str, ...]]) -> list[FinishedJob]:
        nonlocal count
        seen = []
        for job in jobs:
            lr, norm = (float(o.split("=")[1]) for o in job if o.startswith(("optimizer.lr", "clip.max_norm")))
            verdict = "healthy" if truth(math.log10(lr), math.log10(norm), job) else "diverged"
            lost = verdict == "diverged"
            facts = {"outcome": {"status": "completed"}, "evidence": {"loss_last": 1.0}, "lost": lost}
            seen.append(FinishedJob(str(count), {"verdict": verdict} | facts))
            count += 1
        return seen

    map_report.report(tmp_path, search, conduct(search, run, search.option.max_runs, lambda text: None))
    return json.loads((tmp_path / "cells.json").read_text())


def test_a_map_is_written_with_what_it_saved_and_how_sure_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def diagonal(x: float, y: float, job: Any) -> bool:
        return x + y < -2

    told = run_map(tmp_path, diagonal, checks=40)
    (one,) = told["maps"]
    assert one["grid"] == 33**2 and one["runs"] == len(one["points"]) < 0.4 * 33**2
    assert one["checked"] == 40 and one["wrong"] == 0 and one["wrong_at_most"] == pytest.approx(0.072, abs=0.001)
    assert one["unrefined"] == 0 and {name for *_, name in one["cells"]} == {"stable", "not stable", "mixed"}
    assert sum(size**2 for _, _, size, _ in one["cells"]) == 32**2
    grid = dense(one, 32)
    for j in range(33):
        for i in range(33):
            if abs(i - (32 - j)) > 0:
                x, y = -4 + 4 * i / 32, -2 + 4 * j / 32
                assert (grid[j][i] == "stable") == diagonal(x, y, ())
    said = capsys.readouterr().out
    assert f"{one['runs']} runs of the 1089" in said and "0 of 40 points checked" in said


def test_an_island_that_the_coarse_grid_steps_over_shows_in_the_checks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def island(x: float, y: float, job: Any) -> bool:
        return not (-2.95 < x < -2.05 and -0.95 < y < -0.05)

    blind = run_map(tmp_path, island, checks=0)["maps"][0]
    assert blind["runs"] == 25 and blind["checked"] == 0
    assert "all of one class" in capsys.readouterr().out
    (one,) = run_map(tmp_path, island, checks=100)["maps"]
    assert one["wrong"] > 0 and one["wrong"] / one["checked"] < one["wrong_at_most"] < 0.2
    inside = [seen for i, j, seen, _ in one["points"] if island(-4 + i / 8, -2 + j / 8, ()) is False]
    assert len(inside) > one["wrong"] and set(inside) == {"not stable"}, "what was wrong is then refined"
    grid = dense(one, 32)
    lost = sum(not island(-4 + i / 8, -2 + j / 8, ()) for i in range(33) for j in range(33))
    assert sum(name == "not stable" for row in grid for name in row) == lost
    assert "refined after that" in capsys.readouterr().out


def test_points_of_whole_numbers_that_are_the_same_are_one_run_and_none_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """4 layers in 17 places: the full grid has 4 x 17 runs, each of which can be told by its job."""
    option = QuadtreeOption(x="model.layers:1:4", y="optimizer.lr:1e-4:1", resolution=16, coarse=4, checks=5)
    search = MapSearch(option, [("model=lstm",)], {"model.layers"})
    names: dict[tuple[str, ...], str] = {}
    asked: list[tuple[str, ...]] = []

    def run(jobs: list[tuple[str, ...]]) -> list[FinishedJob]:
        asked.extend(dict.fromkeys(job for job in jobs if job not in names))
        seen = []
        for job in jobs:
            layers, lr = (float(o.split("=")[1]) for o in job[1:3])
            facts = {"outcome": {"status": "completed"}, "evidence": {"loss_last": 1.0}, "lost": lr * layers > 0.02}
            seen.append(FinishedJob(names.setdefault(job, str(len(names))), {"verdict": "healthy"} | facts))
        return seen

    map_report.report(tmp_path, search, conduct(search, run, None, lambda text: None))
    (one,) = json.loads((tmp_path / "cells.json").read_text())["maps"]
    assert one["grid"] == 4 * 17 and one["runs"] == len(asked) == len(names) < one["grid"]
    assert sum(one["classes"].values()) == one["runs"]
    assert one["checked"] == 5 and one["skipped"] + one["runs"] - one["checked"] == one["grid"]
    assert f"{one['runs']} runs of the 68 of the full grid: {1 - one['runs'] / 68:.1%} saved" in capsys.readouterr().out
    assert search.progress() == "the full grid has 68"


def test_a_budget_is_kept_and_what_is_coarse_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = run_map(tmp_path, lambda x, y, job: x + y < -2, max_runs=60)
    (one,) = told["maps"]
    assert one["runs"] == 60 and one["unrefined"] > 0 and told["ended"] == "max_runs=60 was reached"
    names = {name for row in dense(one, 32) for name in row}
    assert names == {"stable", "not stable", None}, "no point is of two classes; of some nothing is known"
    said = capsys.readouterr().out
    assert "not complete" in said and "not refined to the end" in said


def test_other_axes_give_a_map_each(tmp_path: Path) -> None:
    points = [("clip=norm", "seed=0"), ("clip=norm", "seed=1")]
    first, second = run_map(tmp_path, lambda x, y, job: x < -2.5 + ("seed=1" in job), *points)["maps"]
    assert (first["point"], second["point"]) == ("seed=0", "seed=1")
    stable = [sum(name == "stable" for row in dense(one, 32) for name in row) for one in (first, second)]
    assert stable == [33 * 12, 33 * 20]


def test_axes_are_read_and_refused() -> None:
    assert parsed("x", "optimizer.lr:1e-4:1") == FieldRange("optimizer.lr", 1e-4, 1.0)
    linear = parsed("x", "optimizer.momentum:0:0.9:linear")
    assert linear.value(0) == 0 and linear.value(0.5) == 0.45 and linear.value(1) == 0.9
    assert parsed("x", "a:0.1:10").value(0.5) == 1 and FieldRange("a", 1, 64, whole=True).value(0.4) == 5
    for text in ("", "a", "a:1", "a:1:b", "a:2:1", "a:0:1", "a:1:inf", "a:1:2:cubic", ":1:2", "a:1:2:log:3"):
        with pytest.raises(Invalid, match=r"hydra\.sweeper\.x"):
            parsed("x", text)
    with pytest.raises(Invalid, match="another field"):
        MapSearch(QuadtreeOption(x="a:1:2", y="a:1:2"), [()])
    with pytest.raises(Invalid, match="axis of the map"):
        MapSearch(QuadtreeOption(x="a:1:2", y="b:1:2"), [("a=1",), ("a=2",)])
    with pytest.raises(Invalid, match="whole numbers"):
        MapSearch(QuadtreeOption(x="a:0.5:2", y="b:1:2"), [()], {"a"})
    for bad in ({"resolution": 24}, {"resolution": 8}, {"coarse": 0}, {"checks": -1}, {"judge": "x"}):
        with pytest.raises(Invalid):
            QuadtreeOption(**bad)  # type: ignore[arg-type]


def test_the_short_command_is_that_of_the_sweeper() -> None:
    made = overrides(
        ["--config-dir", "mine", "+experiment=exploding", "x=optimizer.lr:1e-4:1", "y=b:1:2", "max_runs=9", "seed=1"]
    )
    assert made == [
        *("--config-dir", "mine", "hydra/sweeper=quadtree", "+experiment=exploding"),
        *("hydra.sweeper.x=optimizer.lr:1e-4:1", "hydra.sweeper.y=b:1:2", "hydra.sweeper.max_runs=9", "seed=1"),
    ]
    assert asks_for_runs(["x=1"]) and not asks_for_runs(["outputs/run/sweep", "--x=optimizer.lr"])
    with pytest.raises(Usage, match=r"did you mean resolution\?"):
        overrides(["resolutoin=64"])
    for axis, rest in (("x", "y=b:1:2"), ("y", "x=a:1:2"), ("x", "clip=norm")):
        with pytest.raises(Usage, match=f"^{axis}: must be given"):
            overrides(["clip=norm", rest])
    assert overrides(["resume=outputs/run/sweep"]) == ["hydra/sweeper=quadtree", "resume=outputs/run/sweep"]


def test_a_search_is_checked_before_it_speaks() -> None:
    search, said = MapSearch(QuadtreeOption(coarse=2, resolution=2), [("clip=norm",)]), list[str]()

    def refuse(jobs: list[tuple[str, ...]]) -> None:
        assert len(jobs) == 9 and not said
        raise Invalid("clip.max_nrm", 1, "no such field")

    with pytest.raises(Invalid, match="max_nrm"):
        conduct(search, lambda jobs: [], None, said.append, refuse)
    assert not said
