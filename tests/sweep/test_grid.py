"""Grids and ready sweeps: their points, their jobs, and what the command line replaces."""

import csv
import itertools
from pathlib import Path

import hydra
import pytest
from forked import SHORT, Commands, runs, told
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import DictConfig

from gradlab.base.conf import conf_dir, yaml_names
from gradlab.cli.help import help_text
from gradlab.config.compose import compose, register
from gradlab.config.resolvers import points
from gradlab.config.schema import to_config
from gradlab.sweep.grid.jobs import planned


def composed(*overrides: str) -> DictConfig:
    """A sweep's configuration, as its sweeper gets it."""
    register()
    with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        fixed = [o for o, p in zip(overrides, parsed, strict=True) if not p.is_sweep_override()]  # as Hydra begins
        found = hydra.compose("config", fixed, return_hydra_config=True)
        found.hydra.overrides.task = list(overrides)
        jobs = planned(found)
        assert jobs is not None
        return DictConfig({"jobs": jobs, "mode": str(found.hydra.mode)})


@given(st.floats(1e-8, 1e8), st.floats(1e-8, 1e8), st.integers(2, 60))
def test_points_are_a_factor_apart_from_end_to_end(start: float, stop: float, num: int) -> None:
    found = points(start, stop, num)
    factor = (stop / start) ** (1 / (num - 1))
    assert len(found) == num and found[0] == pytest.approx(start, rel=1e-3)
    assert found[-1] == pytest.approx(stop, rel=1e-3)
    for one, other in itertools.pairwise(found):
        assert other / one == pytest.approx(factor, rel=1.1e-3)
    if abs(factor - 1) > 1e-9:
        assert len(set(found)) == num, "points that rounding would make one keep all their digits"


def test_points_read_well() -> None:
    assert points(1e-4, 1, 5) == [1e-4, 1e-3, 1e-2, 0.1, 1]
    assert points(0.1, 10, 4) == [0.1, 0.4642, 2.154, 10]
    assert points(3, 5, 1) == [3]
    assert len(set(points(1, 1.0001, 50))) == 50


def test_logspace_is_a_word_of_overrides() -> None:
    register()
    register()  # twice does no harm
    parsed = OverridesParser.create().parse_override("optimizer.lr=logspace(1e-3, 1, 4)")
    assert parsed.is_sweep_override() and list(parsed.sweep_string_iterator()) == ["0.001", "0.01", "0.1", "1.0"]


@pytest.mark.parametrize(
    ("overrides", "count", "axes"),
    [
        (["+sweep=lr_max_norm"], 256, {"expect": {"any"}}),
        (["+sweep=lr_max_norm", "clip=per_layer", "optimizer.lr=0.1,1"], 32, {"clip": {"per_layer"}}),
        (["optimizer.lr=0.1", "+sweep=lr_max_norm", "model=lstm"], 16, {"optimizer.lr": {"0.1"}}),
        (["+sweep=precision_lr"], 48, {"precision": {"fp32", "bf16", "fp16"}}),
        (["+sweep=depth_init"], 30, {"model.layers": {"2", "4", "8", "16", "32"}}),
        (["+sweep=depth_init", "model=transformer"], 10, {"model.init": {"default", "gpt2"}}),
        (["+sweep=depth_init", "+experiment=vanishing_rnn"], 8, {"model.init": {"default", "orthogonal"}}),
        (["+sweep=seeds", "seed=range(3,5)"], 2, {"seed": {"3", "4"}}),
        (["+sweep=seeds"], 8, {"expect": {"any"}}),
    ],
)
def test_jobs_of_ready_sweeps(overrides: list[str], count: int, axes: dict[str, set[str]]) -> None:
    found = composed(*overrides)
    jobs = [dict(o.split("=", 1) for o in job) for job in found.jobs]
    assert len(jobs) == count == len({tuple(sorted(job.items())) for job in jobs}) and "MULTIRUN" in found.mode
    for axis, values in axes.items():
        assert {job[axis] for job in jobs} == values
    for job in (found.jobs[0], found.jobs[-1]):  # each is a configuration that a run takes
        to_config(compose(list(job)))


def test_every_ready_sweep_is_tested() -> None:
    marks = test_jobs_of_ready_sweeps.pytestmark  # type: ignore[attr-defined]
    tested = {o for case in marks[0].args[1] for o in case[0]}
    chosen_by_optuna = {"+sweep=optuna"}  # test_objective.py
    assert {f"+sweep={name}" for name in yaml_names(conf_dir() / "sweep")} <= tested | chosen_by_optuna


@pytest.mark.parametrize("order", [1, pytest.param(-1, marks=pytest.mark.slow)])
def test_a_ready_sweep_needs_no_flag_and_expects_anything_wherever_it_stands(
    gradlab: Commands, tmp_path: Path, order: int
) -> None:
    given = [
        "+sweep=lr_max_norm",
        "+experiment=vanishing",
        *SHORT,
        "optimizer.lr=logspace(0.01,1,2)",
        "clip.max_norm=1",
    ]
    result = gradlab(*given[::order], cwd=tmp_path)
    assert result.code == 0, result
    (sweep,) = runs(tmp_path)
    rows = list(csv.DictReader((sweep / "results.csv").read_text().splitlines(True)))
    assert [next(o for o in row["overrides"].split() if "lr=" in o) for row in rows] == [
        "optimizer.lr=0.01",
        "optimizer.lr=1.0",
    ]
    assert gradlab(*given, "expect=exploding", cwd=tmp_path).code == 1


def test_help_names_the_sweeps_and_where_they_run() -> None:
    said = help_text()
    assert "+sweep=" in said and "depth_init lr_max_norm optuna precision_lr seeds" in said
    assert "hydra/launcher=basic,vectorized,joblib,submitit_local,submitit_slurm" in said


def test_an_axis_of_a_file_without_a_value_is_a_wrong_command(gradlab: Commands, tmp_path: Path) -> None:
    (tmp_path / "conf" / "sweep").mkdir(parents=True)
    params = "hydra: {mode: MULTIRUN, sweeper: {params: {seed: 'range(0,0)'}}}"
    (tmp_path / "conf" / "sweep" / "of_none.yaml").write_text(f"# @package _global_\n{params}\n")
    said = told(gradlab("+sweep=of_none", "--config-dir=conf", cwd=tmp_path))
    assert said == "gradlab: seed=range(0,0): must hold a value: there would be no job\n"
    assert not list(tmp_path.rglob("multirun.yaml"))
