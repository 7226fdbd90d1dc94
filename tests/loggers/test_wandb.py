"""W&B: what a run leaves is read by W&B's own reader (`wandb sync`), and sent to a small service on this machine."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import wandb
import yaml
from forked import SHORT, Commands
from helpers import run as run_command
from helpers import wait_for
from wandb_server import Service

from gradlab.base.json_lines import read_lines
from gradlab.base.option import Invalid
from gradlab.config.compose import compose
from gradlab.config.schema import to_config
from gradlab.loggers import rows
from gradlab.loggers.base import About
from gradlab.loggers.options import WandbOption
from gradlab.loggers.wandb import folder as run_folder
from gradlab.loggers.wandb import sweep as wandb_sweep
from gradlab.loggers.wandb.logger import WandbLogger

SMALL = ("trainer.epochs=1", "data.samples=64", "model.layers=2", "model.width=8", "expect=any")
TOLD = {
    "verdict": "nan_loss",
    "sentence": "the loss is not finite",
    "exit_code": 1,
    "outcome": {"status": "failed", "applied": 4, "attempts": 5, "first_failed_attempt": 5, "eval": []},
    "findings": [
        {"code": "nan_loss", "severity": "critical", "sentence": "no loss", "began": 5, "causes": ["a", "b"]},
        {"code": "spike", "severity": "info", "sentence": "a spike", "began": None, "evidence": {"norm": "Infinity"}},
    ],
}


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Service]:
    os.environ.pop("WANDB_SERVICE", None)  # of an earlier test; monkeypatch would put it back
    for name in [n for n in os.environ if n.startswith("WANDB_")] + ["CI"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    made = Service()
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    wandb.teardown()  # it keeps the address that it saw first
    yield made
    made.close()
    wandb.teardown()


def line(attempt: int, **more: Any) -> dict[str, Any]:
    return {"update": attempt, "attempt": attempt, "epoch": 1, "train/loss": 1.0 / attempt} | more


def logged(folder: Path, lines: list[dict[str, Any]], kept: int = 0, told: Any = TOLD, **fields: Any) -> WandbLogger:
    """Log lines, of which `kept` stand before a resumption."""
    (folder / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    config = {"seed": 3, "optimizer": {"lr": 0.1}, "resume": str(folder) if kept else None, "remedy": {"clip_norm": {}}}
    about = About(folder, config, "exploding", {"names": ["a", "b"]}, ["seed=3"], lines=kept)
    sink = WandbLogger(WandbOption(timeout=20, **fields), about)
    for x in lines[kept:]:
        sink.log(x, None)
    sink.finish(told, folder)
    return sink


def sync(service: Service, *folders: Path) -> None:
    parts = [str(part) for folder in folders for part in run_folder.earlier(folder)]
    command = ["wandb", "sync", "--yes", "--include-online", *parts]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folders[0])  # it leaves wandb/logs
    assert done.returncode == 0 and "ERROR" not in done.stderr, done.stderr


def steps(service: Service) -> list[tuple[int, int]]:
    (run,) = service.runs.values()
    return [(x["_step"], x["attempt"]) for x in run.history]


def test_offline_run_is_complete_once_it_is_sent(tmp_path: Path, service: Service) -> None:
    lines = [line(i) for i in range(1, 5)] + [line(5, **{"update": 4, "train/loss": math.nan, "update/skipped": True})]
    logged(tmp_path, lines, mode="offline", tags=["a"], job_type="probe", entity="me")
    assert not service.runs
    sync(service, tmp_path)
    (run,) = service.runs.values()
    bucket, config = run.bucket, json.loads(run.bucket["config"])
    assert (bucket["groupName"], bucket["jobType"], bucket["tags"]) == ("exploding", "probe", ["a"])
    assert (bucket["displayName"], bucket["project"], bucket["entity"]) == (tmp_path.name, "gradlab", "me")
    assert (config["optimizer"]["value"], config["seed"]["value"]) == ({"lr": 0.1}, 3)
    assert (config["experiment"]["value"], config["remedies"]["value"]) == ("exploding", "clip_norm")
    assert [(x["_step"], x["update"], x["attempt"]) for x in run.history] == [
        (0, 1, 1),
        (1, 2, 2),
        (2, 3, 3),
        (3, 4, 4),
        (4, 4, 5),
    ]
    assert math.isnan(float(run.history[4]["train/loss"])) and run.history[4]["nonfinite/train/loss"] == 1
    assert not any("nonfinite/train/loss" in x for x in run.history[:4])
    kept = {k: run.summary[k] for k in ("verdict", "first_failing_update", "status", "exit_code", "update", "attempts")}
    assert kept == {
        "verdict": "nan_loss",
        "first_failing_update": 5,
        "status": "failed",
        "exit_code": 1,
        "update": 4,
        "attempts": 5,
    }
    assert run.complete == [1]
    (file,) = tmp_path.glob("wandb/*/files/" + run.summary["findings"]["path"])
    table = json.loads(file.read_text())
    assert table["columns"] == list(rows.FINDINGS)
    assert table["data"][0] == ["critical", "nan_loss", 5, "no loss", "a; b", ""]
    assert table["data"][1][-1] == "norm=Infinity" and len(table["data"]) == 2
    assert [a["artifactTypeName"] for a in service.artifacts] == ["run_table"]


def test_a_run_says_where_it_is_to_be_seen_or_what_sends_it(
    tmp_path: Path, service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "online").mkdir()
    (tmp_path / "it is").mkdir()
    sink = logged(tmp_path / "online", [line(1)])
    assert capsys.readouterr().out == f"W&B: {sink.run.url}\n" and sink.run.id in sink.run.url
    logged(tmp_path / "it is", [line(1)], mode="offline")
    said = capsys.readouterr().out
    assert said.startswith("W&B: offline; to send it: wandb sync ")
    subprocess.run(said.partition(": wandb")[2].join(["wandb", ""]), shell=True, check=True, cwd=tmp_path, timeout=120)
    assert len(service.runs) == 2 and all(len(run.history) == 1 for run in service.runs.values())
    logged(tmp_path / "it is", [line(1)], mode="disabled")
    assert capsys.readouterr().out == ""


def test_critical_findings_send_alerts_and_files_are_artifacts_when_asked(tmp_path: Path, service: Service) -> None:
    for name in ("crash.pt", "checkpoint.pt", "report.html"):
        (tmp_path / name).write_text(name)
    logged(tmp_path, [line(1)], artifacts="all")
    kinds = [a["artifactTypeName"] for a in service.artifacts]
    assert sorted(kinds) == ["crash", "model", "page", "run_table"]
    alerts = [v for name, v in service.queries if name == "NotifyScriptableRunAlert"]
    assert [(v["title"], v["text"], v["severity"]) for v in alerts] == [("nan_loss", "no loss", "ERROR")]


def test_nothing_is_uploaded_or_alerted_when_it_is_not_asked_for(tmp_path: Path, service: Service) -> None:
    (tmp_path / "crash.pt").write_text("it")
    logged(tmp_path, [line(1)], alerts=False, told=TOLD | {"findings": []})
    assert service.runs and not service.artifacts
    assert "NotifyScriptableRunAlert" not in [name for name, _ in service.queries]


@pytest.mark.parametrize("mode", ["online", pytest.param("offline", marks=pytest.mark.slow)])
def test_a_resumed_run_goes_on_with_lines_that_its_w_and_b_run_lacks(
    tmp_path: Path, service: Service, mode: str
) -> None:
    """The first part got as far as line 6, its checkpoint stands at line 4; a kill cut the file within a record."""
    first = logged(tmp_path, [line(i) for i in range(1, 7)], mode=mode)
    if mode == "offline":
        (part,) = run_folder.earlier(tmp_path)
        (file,) = part.glob("*.wandb")
        before = b""
        while run_folder.logged([part]) < 6 or before != file.read_bytes():  # W&B's process may write on for a moment
            before = file.read_bytes()
            time.sleep(1)
        file.write_bytes(before[:-5])
    time.sleep(1.1)  # W&B names a part by the second
    second = logged(tmp_path, [line(i) for i in range(1, 10)], kept=4, mode=mode)
    assert second.run.id == first.run.id and second.first == 6
    if mode == "offline":
        assert len(run_folder.earlier(tmp_path)) == 2
        sync(service, tmp_path)
    assert steps(service) == [(i, i + 1) for i in range(9)]


@pytest.mark.slow
def test_lines_that_a_kill_has_cost_w_and_b_are_sent_again(tmp_path: Path, service: Service) -> None:
    first = logged(tmp_path, [line(i) for i in range(1, 3)])
    time.sleep(1.1)
    assert logged(tmp_path, [line(i) for i in range(1, 8)], kept=5).run.id == first.run.id
    assert steps(service) == [(i, i + 1) for i in range(7)]


@pytest.mark.slow
def test_a_service_that_falls_silent_neither_slows_the_lines_nor_holds_the_end(
    tmp_path: Path, service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    about = About(tmp_path, {}, "run")
    sink = WandbLogger(WandbOption(timeout=2), about)
    service.deaf.set()
    began = time.monotonic()
    for i in range(1, 1001):
        sink.log(line(i), None)
    assert time.monotonic() - began < 2, "a line has waited for the service"
    began = time.monotonic()
    sink.finish(TOLD, tmp_path)
    assert time.monotonic() - began < 2 + 5, "the end has waited longer than the timeout"
    assert capsys.readouterr().err == ""
    service.deaf.clear()
    service.released.set()
    time.sleep(1)
    service.runs.clear()
    (part,) = run_folder.earlier(tmp_path)
    assert part.name.startswith("run-") and run_folder.logged([part]) == 1000
    sync(service, tmp_path)
    (run,) = service.runs.values()
    assert len(run.history) == 1000 and run.summary["verdict"] == "nan_loss"


def test_lines_of_layers_are_few_and_bounded(tmp_path: Path) -> None:
    names = [f"layer{i}" for i in range(1000)]
    norms = [10.0**-i for i in range(5)] * 199 + [math.nan, math.inf, None, 0.0, 1.0]
    made = rows.of_layers(names, {"grad/layer": norms, "activation/max": [1.0]}, 10)
    assert len(made) == 11 and made["nonfinite/layers"] == 2
    assert {"grad/layer/layer0", "grad/layer/layer999"} <= set(made)
    assert all(
        math.isnan(v) or v == norms[int(k.removeprefix("grad/layer/layer"))] for k, v in made.items() if "/layer/" in k
    )
    counts, edges = rows.decades(norms) or ([], [])
    logs = numpy.log10([x for x in norms if x is not None and 0 < x < math.inf])
    assert counts == numpy.histogram(logs, bins=32)[0].tolist() and numpy.allclose(edges, numpy.histogram(logs, 32)[1])
    assert rows.decades([math.nan, None, 0.0]) is None and sum((rows.decades([1.0]) or ([],))[0]) == 1


@pytest.mark.slow
def test_layers_are_logged_at_their_cadence(tmp_path: Path, service: Service) -> None:
    sink = WandbLogger(WandbOption(mode="offline", layers_every=4), About(tmp_path, {}, "run", {"names": ["a", "b"]}))
    for i in range(1, 10):
        sink.log(line(i), {"grad/layer": [1.0 * i, 2.0]} if i % 2 else None)
    sink.finish({"outcome": {}}, tmp_path)
    sync(service, tmp_path)
    (run,) = service.runs.values()
    assert {x["attempt"]: x["grad/layer/a"] for x in run.history if "grad/layer/a" in x} == {1: 1.0, 5: 5.0, 9: 9.0}
    assert sum(run.history[0]["grad/layers_log10"]["values"]) == 2


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"mode": "on"}, "mode=on: must be one of auto, online"),
        ({"artifacts": "some"}, "artifacts=some: must be one of none, crash, all"),
        ({"code": "diff"}, "code=diff: must be one of git, none"),
        ({"timeout": math.inf}, "timeout=inf: must be > 0"),
        ({"project": "a/b"}, "project=a/b: must be without"),
        ({"entity": ""}, "entity='': must be of 1 to 128 characters"),
        ({"layers_every": -1}, "layers_every=-1: must be >= 0"),
        ({"tags": ["x" * 65]}, "must be of 1 to 64 characters each"),
    ],
)
def test_a_wrong_field_is_told_in_a_line(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(Invalid) as raised:
        WandbOption(**fields)
    assert said in str(raised.value)


def test_a_mode_in_the_environment_that_there_is_not_is_a_wrong_command(
    gradlab: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "sometimes")
    done = gradlab(*SMALL, "logger=wandb", cwd=tmp_path)
    assert done.code == 2 and done.err.count("\n") == 1, done.err
    assert "logger.wandb.mode=auto with WANDB_MODE=sometimes: must be one of" in done.err
    WandbOption(mode="offline").check()  # then the environment does not matter


def sweep(folder: Path) -> list[dict[str, Any]]:
    """What a sweep of two jobs leaves."""
    task = ["+experiment=exploding", "+remedy=none,clip_norm"]
    hydra = {"hydra": {"overrides": {"task": task}, "runtime": {"choices": {"experiment": "exploding"}}}}
    (folder / "figures").mkdir(parents=True)
    (folder / "multirun.yaml").write_text(yaml.safe_dump(hydra))
    for job in ("0", "1"):
        (folder / job / ".hydra").mkdir(parents=True)
        fields = {"project": "gradlab", "mode": "offline", "tags": []}
        (folder / job / ".hydra" / "config.yaml").write_text(yaml.safe_dump({"logger": {"wandb": fields}}))
        (folder / job / ".hydra" / "hydra.yaml").write_text(yaml.safe_dump(hydra))
    (folder / "comparison.csv").write_text(
        "overrides,remedy,judgement,updates\nx,none,baseline,1\nx,clip_norm,cured,30\n"
    )
    point = {"x": 0.1, "y": 1.0, "outcome": "stable", "stable": True, "jobs": ["0", "1"]}
    best = {"says": "lr 0.1", "values": {}, "command": None}
    piece = {"fields": {"model": "lstm"}, "points": [point], "rows": [], "recommendation": best}
    axes = {"x": {"name": "optimizer.lr"}, "y": {"name": "clip.max_norm"}}
    (folder / "map.json").write_text(json.dumps(axes | {"slices": [piece]}))
    from PIL import Image

    Image.new("RGB", (4, 4)).save(folder / "figures" / "map.png")
    verdicts = [("0", "exploding", math.inf), ("1", "healthy", 0.5)]
    return [{"job": job, "verdict": verdict, "loss/final": loss} for job, verdict, loss in verdicts]


def test_a_sweep_as_a_whole_is_a_run_with_tables_and_figures_in_the_group_of_its_jobs(
    tmp_path: Path, service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "sweep_x"
    found = sweep(folder)
    wandb_sweep.write(folder, found)
    assert capsys.readouterr().err == ""
    sync(service, folder)
    (run,) = service.runs.values()
    assert (run.bucket["jobType"], run.bucket["displayName"]) == ("sweep", "sweep_x")
    assert run.bucket["groupName"] == run_folder.group_of(folder / "0", "exploding") == "exploding sweep_x"
    (part,) = run_folder.earlier(folder)
    tables = {
        n: json.loads((part / "files" / run.summary[n]["path"]).read_text()) for n in ("results", "comparison", "map")
    }
    assert tables["results"]["columns"] == ["job", "verdict", "loss/final"]
    assert [row[:2] for row in tables["results"]["data"]] == [["0", "exploding"], ["1", "healthy"]]
    assert tables["comparison"]["data"] == [["x", "none", "baseline", 1], ["x", "clip_norm", "cured", 30]]
    assert tables["map"]["columns"] == ["optimizer.lr", "clip.max_norm", "model", "outcome", "stable", "jobs"]
    assert tables["map"]["data"] == [[0.1, 1.0, "lstm", "stable", True, "0 1"]]
    assert run.summary["figures/map"]["_type"] == "image-file"
    kept = {k: run.summary[k] for k in ("jobs", "verdicts/exploding", "verdicts/healthy", "recommendation")}
    assert list(kept.values()) == [2, 1, 1, "lr 0.1"]


def test_a_sweep_without_w_and_b_has_none(tmp_path: Path) -> None:
    folder = tmp_path / "sweep_x"
    found = sweep(folder)
    for job in ("0", "1"):
        (folder / job / ".hydra" / "config.yaml").write_text("logger: {}\n")
    wandb_sweep.write(folder, found)
    assert not (folder / "wandb").exists()


def test_a_jobs_name_says_what_is_its_own(tmp_path: Path) -> None:
    sweep(tmp_path)
    assert run_folder.name_of(tmp_path / "1", ["+experiment=exploding", "+remedy=clip_norm"]) == "1 +remedy=clip_norm"
    assert run_folder.name_of(tmp_path.parent / "alone", ["seed=1"]) == "alone"


def agent_command() -> list[str]:
    """As W&B's agent makes it of the file."""
    from wandb.sdk.launch.sweeps import utils

    told = yaml.safe_load((Path(__file__).parents[2] / "experiments" / "wandb_sweep.yaml").read_text())
    drawn = {"optimizer.lr": 1.2345e-05, "clip.max_norm": 10.0, "seed": 2}
    assert set(drawn) == set(told["parameters"])
    args = utils.create_sweep_command_args({"args": {k: {"value": v} for k, v in drawn.items()}})
    given = args | {"env": ["/usr/bin/env"], "interpreter": [sys.executable]}
    made: list[str] = []
    for part in utils.create_sweep_command(told["command"]):
        made += given[part[2:-1]] if part.startswith("${") else [part]
    return made


def test_the_command_of_a_w_and_b_sweep_composes() -> None:
    made = agent_command()
    assert made[:4] == ["/usr/bin/env", sys.executable, "-m", "gradlab"]
    config = to_config(compose(made[4:]))
    assert (config.optimizer.lr, config.seed, config.expect) == (1.2345e-05, 2, "any")
    assert vars(config.clip)["max_norm"] == 10.0 and list(config.logger) == ["wandb"]


@pytest.mark.slow
def test_the_command_of_a_w_and_b_sweep_runs(tmp_path: Path, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_RUN_ID", "drawn1")
    monkeypatch.setenv("WANDB_SWEEP_ID", "sweep1")
    done = run_command([*agent_command(), "trainer.updates=5", "trainer.progress=none"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert service.runs["drawn1"].summary["verdict"] and service.runs["drawn1"].complete == [0]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["online", "offline"])
def test_a_run_that_was_killed_goes_on_in_the_same_w_and_b_run(
    gradlab: Commands, tmp_path: Path, service: Service, mode: str
) -> None:
    more = [
        "trainer.epochs=200",
        "trainer.updates=1500",
        "data.samples=256",
        "model.width=128",
        "trainer.progress=none",
    ]
    fields = ["logger=wandb", f"logger.wandb.mode={mode}", "trainer.checkpoint_every=50", "trainer.evaluate_every=0"]
    process = gradlab.start("expect=any", *more, *fields, "hydra.run.dir=it", cwd=tmp_path)
    wait_for((tmp_path / "it" / "checkpoint.pt").is_file, process)
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    time.sleep(2)
    done = gradlab("resume=it", cwd=tmp_path, timeout=200)
    assert done.code == 0 and "failed" not in done.err, done.err
    if mode == "offline":
        sync(service, tmp_path / "it")
    assert steps(service) == [(i, i + 1) for i in range(1500)]
    assert len(list(read_lines(tmp_path / "it" / "metrics.jsonl"))) == 1500


@pytest.mark.slow
def test_lanes_are_one_w_and_b_run_each_and_the_sweep_one_more(
    gradlab: Commands, tmp_path: Path, service: Service
) -> None:
    given = ["-m", "+experiment=exploding", "+remedy=none,clip_norm", "trainer.updates=30", "logger=wandb"]
    more = ["logger.wandb.mode=offline", "trainer.progress=none", "hydra/launcher=vectorized"]
    done = gradlab(*given, *more, cwd=tmp_path, timeout=200)
    assert done.code == 0 and done.err == "", done.err
    (folder,) = (tmp_path / "outputs" / "exploding").iterdir()
    sync(service, folder, *(folder / job for job in ("0", "1")))
    runs = {run.bucket["displayName"]: run for run in service.runs.values()}
    assert set(runs) == {"0 +remedy=none", "1 +remedy=clip_norm", folder.name}
    assert {run.bucket["groupName"] for run in runs.values()} == {f"exploding {folder.name}"}
    for job, name in (("0", "0 +remedy=none"), ("1", "1 +remedy=clip_norm")):
        told = json.loads((folder / job / "diagnosis.json").read_text())
        assert runs[name].summary["verdict"] == told["verdict"]
        assert len(runs[name].history) == len(list(read_lines(folder / job / "metrics.jsonl")))
    assert runs[folder.name].summary["comparison"]["nrows"] == 2
    chosen = [json.loads(runs[name].bucket["config"])["choices"]["value"] for name in runs if name != folder.name]
    assert {(c["clip"], c["optimizer"], c["model"]) for c in chosen} == {
        ("none", "sgd", "lstm"),
        ("norm", "sgd", "lstm"),
    }


def test_a_home_that_cannot_be_written_costs_no_line(gradlab: Commands, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("no folder")
    env = {"HOME": str(tmp_path / "home"), "WANDB_MODE": "offline"}
    done = gradlab(*SHORT, "expect=any", "logger=wandb", "hydra.run.dir=r", cwd=tmp_path, **env)
    assert done.code == 0 and done.err == "" and list((tmp_path / "r" / "wandb").glob("offline-run-*")), done
