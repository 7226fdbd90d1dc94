"""`python -m gradlab.report --wandb`: the specification of a W&B Report, made without an account or a network."""

import builtins
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("wandb_workspaces", reason="W&B Reports need wandb-workspaces")
import wandb
from wandb_server import Service

from gradlab.report.command import main
from gradlab.report.wandb import report


@pytest.fixture(autouse=True)
def no_account_and_no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(socket.socket, "connect", lambda *args: pytest.fail("the network was asked"))


def job(folder: Path, overrides: list[str], verdict: str, sentence: str = "seen", project: str = "gradlab") -> None:
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump(overrides))
    (folder / ".hydra" / "config.yaml").write_text(yaml.safe_dump({"logger": {"wandb": {"project": project}}}))
    outcome = {"status": "completed", "eval": [{"eval/loss": 0.25}]}
    (folder / "diagnosis.json").write_text(json.dumps({"verdict": verdict, "sentence": sentence, "outcome": outcome}))


def sweep(folder: Path) -> Path:
    folder.mkdir(parents=True)
    task = ["+experiment=exploding", "optimizer.lr=1,2", "+remedy=none,clip_norm"]
    (folder / "multirun.yaml").write_text(yaml.safe_dump({"hydra": {"overrides": {"task": task}}}))
    (folder / "figures").mkdir()
    for name in ("map.png", "map.svg", "seeds.png"):
        (folder / "figures" / name).touch()
    job(folder / "0", ["+experiment=exploding", "optimizer.lr=1", "+remedy=none"], "exploding", "a | b <img onerror=x>")
    job(folder / "1", ["+experiment=exploding", "optimizer.lr=2", "+remedy=clip_norm"], "healthy")
    return folder


def specification(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--dry-run"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return json.loads(said.out)


def texts(made: dict[str, Any]) -> str:
    return "\n".join(b["content"] for b in made["spec"]["blocks"] if b["type"] == "markdown-block")


def grids(made: dict[str, Any]) -> list[dict[str, Any]]:
    return [b["metadata"] for b in made["spec"]["blocks"] if b["type"] == "panel-grid"]


def panels(made: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for grid in grids(made) for panel in grid["panelBankSectionConfig"]["panels"]]


def test_a_report_has_verdicts_curves_run_sets_and_the_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = specification(capsys, str(sweep(tmp_path / "sweep_x")), "--wandb", "me/gradlab", "--group", 'it\'s "one"')
    assert made["project"] == {"name": "gradlab", "entityName": "me"} or made["project"]["name"] == "gradlab"
    said = texts(made)
    assert "2 runs: 1 exploding, 1 healthy." in said
    assert "| 0 optimizer.lr=1 +remedy=none | exploding | - | 0.25 | a \\| b &lt;img onerror=x> |" in said
    curves = [p["config"] for p in panels(made) if p["viewType"] == "Run History Line Plot"]
    shown = [name for config in curves for name in config["metrics"]]
    wanted = {"train/loss", "grad/norm", "clip/coefficient", "amp/scale", "lr", "update/skipped", "update/ratio"}
    assert wanted | {"nonfinite/train/loss", "nonfinite/grad/norm"} <= set(shown)
    assert {config["xAxis"] for config in curves} == {"update"}
    for grid in grids(made):
        (runs,) = grid["runSets"]
        kind, group = runs["filters"]["filters"]
        assert (kind["key"]["name"], kind["op"], kind["value"]) == (
            "jobType",
            "=" if runs["name"] == "sweep" else "!=",
            "sweep",
        )
        assert (group["key"]["name"], group["op"], group["value"]) == ("group", "=", 'it\'s "one"')
    assert {grid["runSets"][0]["name"] for grid in grids(made)} == {"runs", "sweep"}
    (parallel,) = [p["config"] for p in panels(made) if p["viewType"] == "Parallel Coordinates Plot"]
    axes = [column["accessor"] for column in parallel["columns"]]
    assert axes[:2] == ["config:optimizer.value.lr", "config:remedies.value"] and "summary:eval/loss" in axes
    assert all(table in json.dumps(made) for table in ("findings", "comparison", "results"))
    (media,) = (p["config"]["mediaKeys"] for p in panels(made) if p["viewType"] == "Media Browser")
    assert media == ["figures/map", "figures/seeds"]  # those that its sweep has


def test_a_swept_group_is_an_axis_of_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job(tmp_path / "s" / "0", ["clip=none", "seed=1"], "exploding")
    job(tmp_path / "s" / "1", ["clip=norm", "seed=2"], "healthy")
    made = specification(capsys, str(tmp_path / "s"), "--wandb", "me/gradlab")
    (parallel,) = [p["config"] for p in panels(made) if p["viewType"] == "Parallel Coordinates Plot"]
    assert [c["accessor"] for c in parallel["columns"]][:2] == ["config:choices.value.clip", "config:seed.value"]


def test_a_report_that_is_sent_is_what_dry_run_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the ids that are drawn for each."""
    folder = sweep(tmp_path / "sweep_x")
    printed = specification(capsys, str(folder), "--wandb", "me/gradlab")
    monkeypatch.undo()
    os.environ.pop("WANDB_SERVICE", None)  # of an earlier test, and gone
    service = Service()
    for name, value in service.environment.items():
        monkeypatch.setenv(name, value)
    wandb.teardown()
    assert main([str(folder), "--wandb", "me/gradlab"]) == 0
    service.close()
    wandb.teardown()
    assert capsys.readouterr().out.strip().endswith("/me/gradlab/reports/gradlab:-gradlab--view1")
    ((_, sent),) = [asked for asked in service.queries if asked[0] == "upsertView"]
    assert (sent["entityName"], sent["projectName"], sent["type"]) == ("me", "gradlab", "runs")
    assert texts({"spec": json.loads(sent["spec"])}) == texts(printed)
    kinds = [[p["viewType"] for p in panels({"spec": spec})] for spec in (json.loads(sent["spec"]), printed["spec"])]
    assert kinds[0] == kinds[1] and len(kinds[0]) > 10


def test_without_folders_it_is_about_what_is_here_of_the_project_and_group(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sweep(Path("outputs", "exploding", "sweep_x"))
    job(Path("outputs", "run", "a"), [], "stalled")
    job(Path("outputs", "run", "b"), [], "diverged", project="other")
    assert "3 runs:" in texts(specification(capsys, "--wandb", "me/gradlab"))
    assert "1 run: 1 diverged" in texts(specification(capsys, "--wandb", "me/other"))
    assert "2 runs:" in texts(specification(capsys, "--wandb", "me/gradlab", "--group", "exploding sweep_x"))
    assert "1 run: 1 stalled" in texts(specification(capsys, "--wandb", "me/gradlab", "--group", "run"))
    assert main(["--wandb", "me/none", "--group", "g", "--dry-run"]) == 0
    said = capsys.readouterr()
    assert said.err.startswith("gradlab: no run below outputs is of project none and group g: ")
    assert "has the verdict of each run" in texts(json.loads(said.out))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--wandb", "me"], "--wandb me: must be ENTITY/PROJECT"),
        (["--wandb", "me/a/b"], "--wandb me/a/b: must be ENTITY/PROJECT"),
        (["--wandb", "me/a"], "needs a W&B account"),
        (["--group", "g"], "--group: is of --wandb"),
        (["--dry-run"], "--dry-run: is of --wandb"),
        (["nowhere", "--wandb", "me/a", "--dry-run"], "FOLDER=nowhere: no such folder"),
        ([], "FOLDER: the folder of a run or of a sweep is needed"),
    ],
)
def test_a_wrong_command_is_told_in_a_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == 1


def test_without_the_extra_it_says_how_to_install_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "find_spec", lambda name: None)
    assert main(["--wandb", "me/a", "--dry-run"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "gradlab: --wandb: W&B Reports need an extra",
        "  pip install 'gradlab[reports]'",
    ]


def test_the_command_without_it_imports_nothing_of_w_and_b(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def guarded(name: str, *args: Any, **kwargs: Any) -> Any:
        assert name.split(".")[0] not in ("wandb", "wandb_workspaces"), name
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", guarded)
    assert main([str(tmp_path / "nowhere")]) == 2
