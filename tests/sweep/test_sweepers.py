"""hydra/sweeper=boundary and quadtree on real runs: gradient descent on a quadratic, whose edge is 2 / L."""

import csv
import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forked import Commands
from helpers import wait_for
from sweeps import dense

from gradlab.sweep.launchers.rounds import consecutive, earlier_jobs
from gradlab.sweep.resume import finished

DATA = """
import torch

def rows(curvature=1.0, columns=3):
    draw = torch.Generator().manual_seed(5)
    x = torch.randn(64, columns, generator=draw)
    x = x / (2 * torch.linalg.eigvalsh(x.T @ x / 64)[-1] / curvature).sqrt()  # so that L = curvature
    return x, x @ torch.ones(columns, 1)

def linear():
    return torch.nn.Linear(3, 1, bias=False)
"""
GD = (
    *("model=custom", "model.target=quadratic:linear", "data=custom", "data.target=quadratic:rows", "loss=mse"),
    *("data.batch_size=64", "optimizer=sgd", "optimizer.momentum=0", "trainer.evaluate_every=0", "monitor=none"),
    *("trainer.epochs=100000", "trainer.progress=none"),
)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "quadratic.py").write_text(DATA)
    return tmp_path


def edges(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "edges.json").read_text())


def jobs(folder: Path) -> list[str]:
    return sorted((p.name for p in folder.iterdir() if (p / ".hydra").is_dir()), key=int)


def descent(lr: float, updates: int, curvature: float) -> list[float]:
    """The losses of plain gradient descent from PyTorch's own initial weights under seed 0."""
    scope: dict[str, Any] = {}
    exec(DATA, scope)
    x, y = scope["rows"](curvature)
    torch.manual_seed(0)
    w = scope["linear"]().weight.detach().double()
    x, y, losses = x.double(), y.double(), []
    for _ in range(updates):
        error = x @ w.T - y
        losses.append(float((error**2).mean()))
        w = w - lr * (2 * error.T @ x / len(x))
    return losses


def test_the_curvature_of_the_example_is_what_it_says() -> None:
    scope: dict[str, Any] = {}
    exec(DATA, scope)
    x, _ = scope["rows"](7.0)
    assert np.linalg.eigvalsh(2 * x.double().numpy().T @ x.double().numpy() / 64)[-1] == pytest.approx(7.0, rel=1e-5)
    below, above = descent(2 / 7 / 1.02, 200, 7.0), descent(2 / 7 * 1.02, 200, 7.0)
    assert below[-1] < 0.5 * below[0] and above[-1] > 100 * above[0]


@pytest.mark.slow
def test_the_largest_stable_rate_of_gradient_descent_is_two_over_the_curvature(gradlab: Commands, here: Path) -> None:
    swept = ["+data.kwargs.curvature=0.5,8", "trainer.updates=200", "hydra.sweeper.seeds=[0,1]"]
    more = ["hydra/sweeper=boundary", "hydra.sweeper.tolerance=1.05", "hydra.sweep.dir=edge"]
    result = gradlab(*GD, *swept, *more, cwd=here, timeout=400)
    assert result.code == 0, result
    told = edges(here / "edge")
    for curvature, point in zip((0.5, 8.0), told["points"], strict=True):
        assert point["point"] == f"data.kwargs.curvature={curvature:g}"
        assert len(point["edges"]) == 2
        for found in point["edges"]:
            assert found["stable"] < 2 / curvature * 1.001 and found["lost"] > 2 / curvature * 0.999
            assert found["lost"] / found["stable"] == pytest.approx(1.05, rel=1e-3)
    assert "to a factor of 1.05" in result.out and "0 of 4 edges known" in result.out


@pytest.mark.slow
def test_the_edge_within_a_bracket_is_that_of_plain_gradient_descent(gradlab: Commands, here: Path) -> None:
    """Round by round, with the usual folder for each run; -m is not needed."""
    bracket = ["hydra.sweeper.low=0.26", "hydra.sweeper.high=4", "hydra.sweeper.tolerance=1.1"]
    more = [
        "+data.kwargs.curvature=2",
        "trainer.updates=60",
        "hydra.sweeper.points_per_round=3",
        "hydra.sweeper.checks=0",
    ]
    result = gradlab(*GD, *bracket, *more, "hydra/sweeper=boundary", "hydra.sweep.dir=edge", cwd=here)
    assert result.code == 0, result
    (point,) = edges(here / "edge")["points"]
    assert point["runs"] == len(jobs(here / "edge")) <= 12
    (found,) = point["edges"]
    assert found["stable"] < 1 <= found["lost"] and found["lost"] / found["stable"] < 1.1001
    assert descent(found["stable"], 60, 2.0)[-1] < descent(found["stable"], 60, 2.0)[0]
    assert descent(found["lost"], 60, 2.0)[-1] > 1.5 * descent(found["lost"], 60, 2.0)[0]
    for tried in found["tried"]:
        folder = here / "edge" / tried["job"]
        assert json.loads((folder / "diagnosis.json").read_text())["verdict"] == tried["verdict"]
        assert f"optimizer.lr={tried['value']}" in (folder / ".hydra" / "overrides.yaml").read_text()
        assert (folder / "metrics.jsonl").is_file()
        assert (folder / "checkpoint.pt").is_file() or (folder / "crash.pt").is_file()
    rows = list(csv.DictReader((here / "edge" / "results.csv").read_text().splitlines(True)))
    assert len(rows) == point["runs"] and (here / "edge" / "multirun.yaml").is_file()
    shown = result.out.splitlines()
    assert shown[-1] == "folder: edge" and not any(line.startswith(" job ") for line in shown)


def rows(folder: Path) -> list[dict[str, str]]:
    """results.csv without what the machine decides."""
    with (folder / "results.csv").open() as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


@pytest.mark.slow
def test_finished_jobs_are_not_run_again_and_the_rounds_repeat(gradlab: Commands, here: Path) -> None:
    command = [*GD, "+data.kwargs.curvature=2", "trainer.updates=45", "hydra/sweeper=boundary", "hydra.sweep.dir=edge"]
    command += [
        "hydra.sweeper.low=0.5",
        "hydra.sweeper.high=2",
        "hydra.sweeper.tolerance=1.3",
        *LANES,
        "hydra.sweeper.checks=0",
    ]
    assert gradlab(*command, cwd=here).code == 0
    folder, before = here / "edge", edges(here / "edge")
    results = rows(folder)
    killed = jobs(folder)[1:3]
    for name in killed:
        (folder / name / "diagnosis.json").unlink()
        (folder / name / "crash.pt").touch()
    (folder / jobs(folder)[-1] / "diagnosis.json").write_text('{"verdict": "heal')
    killed.append(jobs(folder)[-1])
    times = {name: (folder / name / "metrics.jsonl").stat().st_mtime_ns for name in jobs(folder)}
    result = gradlab(*command, cwd=here)
    assert result.code == 0 and edges(folder) == before and rows(folder) == results
    again = [name for name in jobs(folder) if (folder / name / "metrics.jsonl").stat().st_mtime_ns != times[name]]
    assert sorted(again) == sorted(killed) and not (folder / killed[0] / "crash.pt").exists()
    assert "largest optimizer.lr" in gradlab("resume=edge", cwd=here).out, "also where nothing is left to run"
    assert edges(folder) == before
    # a finer search in the same folder takes what fits, and its new jobs get new numbers
    count = len(jobs(folder))
    assert gradlab(*command[:-1], "hydra.sweeper.checks=20", cwd=here).code == 0
    assert len(jobs(folder)) > count
    finer = edges(folder)["points"]
    assert [[e["stable"] for e in p["edges"]] for p in finer] == [
        [e["stable"] for e in p["edges"]] for p in before["points"]
    ]


@pytest.mark.slow
def test_a_remedy_that_does_not_apply_is_said_and_costs_its_first_runs(gradlab: Commands, here: Path) -> None:
    command = [*GD, "+data.kwargs.curvature=2", "trainer.updates=45", "+remedy=none,he_init,lower_lr"]
    command += [
        "hydra.sweeper.low=0.25",
        "hydra.sweeper.high=16",
        "hydra.sweeper.tolerance=1.6",
        "hydra.sweeper.checks=0",
        *LANES,
    ]
    result = gradlab(*command, "hydra/sweeper=boundary", "hydra.sweep.dir=edge", cwd=here)
    assert result.code == 0, result
    told = edges(here / "edge")
    none, refused, lower = told["points"]
    assert (
        refused["runs"] == 2
        and refused["seeds"] == 0
        and "no verdict" in refused["says"][0]
        and "does not apply" in refused["says"][0]
    )
    assert lower["edge"] / none["edge"] == pytest.approx(3, rel=0.5)  # a third of the rate
    effects = {effect["value"]: effect for effect in told["effects"]}
    assert effects["lower_lr"]["direction"] == 1 and effects["he_init"]["mean"] is None
    assert "lower_lr / none" in result.out and "remedies," not in result.out


LANES = ("hydra/launcher=vectorized", "hydra.launcher.workers=0")
"""Where what runs the jobs does not matter: in a tenth of the time."""
MAP = (
    *("hydra/sweeper=quadtree", "hydra.sweeper.x=optimizer.lr:0.1:10", "hydra.sweeper.coarse=2", "seed=0", *LANES),
    *("hydra.sweeper.y=optimizer.momentum:0:0.9:linear", "+data.kwargs.curvature=1.0", "trainer.updates=45"),
)


@pytest.mark.slow
def test_a_map_of_gradient_descent_has_its_boundary_where_it_is(gradlab: Commands, here: Path) -> None:
    """Momentum b is stable below lr * curvature = 2 (1 + b)."""
    result = gradlab(*GD, *MAP, "hydra.sweeper.resolution=4", "hydra.sweeper.checks=2", "hydra.sweep.dir=map", cwd=here)
    assert result.code == 0, result
    told = json.loads((here / "map" / "cells.json").read_text())
    (one,) = told["maps"]
    assert one["runs"] == len(jobs(here / "map")) < 25 and f"{one['runs']} runs of the 25" in result.out
    assert one["checked"] == 2 and one["wrong"] == 0
    grid, seen = dense(one, 4), set()
    for j in range(5):
        for i in range(5):
            ratio = 0.1 * 100 ** (i / 4) / (2 * (1 + 0.9 * j / 4))
            if not 0.95 < ratio < 1.05:
                assert grid[j][i] == ("stable" if ratio < 1 else "not stable"), (i, j, ratio)
                seen.add(grid[j][i])
    assert len(seen) == 2


@pytest.mark.slow
def test_ctrl_c_ends_the_search_with_what_is_known(gradlab: Commands, here: Path) -> None:
    search = [*GD, "trainer.updates=2000", "hydra/sweeper=boundary", "hydra.sweep.dir=edge"]
    process = gradlab.start(*search, cwd=here, joined=True)
    wait_for(lambda: len(list(here.glob("edge/*/metrics.jsonl"))) >= 3, process)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 130 and "Traceback" not in said and "it was interrupted" in said, said
    assert edges(here / "edge")["ended"] == "it was interrupted"


@pytest.mark.slow
@pytest.mark.distributed
def test_two_ranks_find_the_edge_of_one(gradlab: Commands, here: Path) -> None:
    search = [*GD, "+data.kwargs.curvature=2", "trainer.updates=45", "hydra/sweeper=boundary", "hydra.sweeper.checks=0"]
    search += ["hydra.sweeper.low=0.5", "hydra.sweeper.high=2", "hydra.sweeper.tolerance=1.3"]
    done = gradlab.torchrun(2, "-m", "gradlab", *search, "data.batch_size=32", "hydra.sweep.dir=two", cwd=here)
    assert done.code == 0, done.out + done.err
    assert gradlab(*search, "hydra.sweep.dir=one", cwd=here).code == 0
    one, two = (edges(here / name)["points"][0]["edges"][0] for name in ("one", "two"))
    assert (one["stable"], one["lost"]) == (two["stable"], two["lost"])


def test_jobs_are_launched_in_stretches_of_numbers_that_follow_each_other() -> None:
    numbers = {(name,): n for name, n in zip("abcde", (0, 1, 4, 5, 9), strict=True)}
    assert list(consecutive(list(numbers), numbers)) == [[("a",), ("b",)], [("c",), ("d",)], [("e",)]]


def test_what_an_earlier_sweep_left(tmp_path: Path) -> None:
    rest = '"remedy": null, "findings": [], "outcome": {"status": "completed"}}'
    whole = '{"verdict": "healthy", "overrides": ["seed=0"], "exit_code": 0, ' + rest
    for name, content in (
        ("0", whole),
        ("3", None),
        ("7", "{"),
        ("note", whole),
        ("9", whole.replace(": 0,", ": 130,").replace("=0", "=9")),
    ):
        (tmp_path / name / ".hydra").mkdir(parents=True)
        (tmp_path / name / ".hydra" / "overrides.yaml").write_text(f"- seed={name}\n")
        if content:
            (tmp_path / name / "diagnosis.json").write_text(content)
    numbers, seen = earlier_jobs(tmp_path)
    assert numbers == {("seed=0",): 0, ("seed=3",): 3, ("seed=7",): 7, ("seed=9",): 9}
    assert list(seen) == [("seed=0",)] and seen["seed=0",].diagnosis["verdict"] == "healthy"
    assert finished(tmp_path / "0", ["seed=0"]) == 0 and finished(tmp_path / "0", ["seed=1"]) is None
    assert earlier_jobs(tmp_path / "nowhere") == ({}, {})
