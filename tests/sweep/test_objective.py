"""The number that a job gives to Hydra's sweepers: by itself, and minimised by Optuna."""

import importlib.util
import math
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from forked import Commands
from sweeps import job

from gradlab.base.distributed import World
from gradlab.base.option import Invalid
from gradlab.cli.job import returned
from gradlab.runs.objective import objective, undominated
from gradlab.runs.record import RunRecord
from gradlab.sweep.vectorized.launch import job_return

LOSSES = [2.0, 1.0, *[1.5] * 40]


def test_objective_is_a_metric_of_a_good_run(tmp_path: Path) -> None:
    folder = job(tmp_path / "0", ["model=lstm"], LOSSES)
    final = RunRecord(folder).measured["loss/final"]
    assert objective(folder, None) == objective(folder, "eval/loss") == 1.5
    assert objective(job(tmp_path / "1", [], LOSSES, outcome={"status": "completed"}), None) == final
    assert objective(folder, "train/loss") == 1.5 and objective(folder, "train/loss:best") == 1.0
    assert objective(folder, ["-train/loss", "loss/final"]) == [-1.5, final]
    with pytest.raises(Invalid, match=r"evil/loss: the run has no such metric; it has .*train/loss"):
        objective(folder, "evil/loss")
    with pytest.raises(Invalid):
        job_return([], folder, "evil/loss").return_value  # noqa: B018
    assert returned(folder, "loss/final", World()) == job_return([], folder, "loss/final").return_value == final


@pytest.mark.parametrize("verdict, status", [("exploding", "failed"), ("too_short", "completed"), (None, "error")])
def test_objective_of_a_run_that_is_not_good_is_infinite(tmp_path: Path, verdict: Any, status: str) -> None:
    folder = job(tmp_path / "0", ["model=lstm"], LOSSES, verdict=verdict, status=status)
    assert objective(folder, "train/loss") == math.inf and objective(folder, ["a", "b"]) == [math.inf] * 2
    assert objective(tmp_path / "none", None) == math.inf


def test_best_of_several_objectives_are_those_that_no_other_beats() -> None:
    assert undominated({"a": 2.0, "b": 1.0, "c": math.inf}) == ["b"]
    assert undominated({"a": [1.0, 2.0], "b": [2.0, 1.0], "c": [2.0, 2.0], "d": [0.0, math.inf]}) == ["a", "b"]


SMALL = ("trainer.epochs=2", "data.samples=640", "data.batch_size=32", "model.layers=2", "model.width=8")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("optuna") is None, reason="no Optuna")
@pytest.mark.parametrize("launcher", ["basic", "vectorized"])
def test_optuna_minimises_the_objective(gradlab: Commands, tmp_path: Path, launcher: str) -> None:
    sweep = ("+sweep=optuna", f"hydra/launcher={launcher}", "hydra.sweep.dir=s")
    few = ("hydra.sweeper.n_trials=3", "hydra.sweeper.n_jobs=2", *SMALL)
    done = gradlab(*sweep, *few, cwd=tmp_path)
    assert done.code == 0, done.err
    runs = [RunRecord(tmp_path / "s" / str(i)) for i in range(3)]
    values = [objective(run.path, None) for run in runs]
    found = yaml.safe_load((tmp_path / "s" / "optimization_results.yaml").read_text())
    assert found["best_value"] == min(values) < max(values)
    best = runs[values.index(min(values))]
    assert float(best.fields["optimizer.lr"]) == found["best_params"]["optimizer.lr"]
    (line,) = [line for line in done.out.splitlines() if line.startswith("best: job")]
    assert line.startswith(f"best: job {best.path.name}, objective {min(values)}: python -m gradlab")
    if launcher == "basic":
        again = gradlab(*shlex.split(line.partition("gradlab ")[2]), "hydra.run.dir=again", cwd=tmp_path)
        assert again.code == 0, again.err
        assert objective(tmp_path / "again", None) == min(values)
        resumed = gradlab("resume=s", cwd=tmp_path)
        assert resumed.code == 0 and line in resumed.out, resumed.err
        wrong = gradlab(*sweep, *few, "objective=evil/loss", "hydra.sweep.dir=t", cwd=tmp_path)
        assert wrong.code == 2 and wrong.err.splitlines()[-1].startswith("gradlab: objective=evil/loss: the run has no")
