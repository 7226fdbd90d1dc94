"""`python -m gradlab.list`: what is told of every run, which are chosen, and in what order."""

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest
from forked import Commands
from helpers import wait_for

from gradlab.base.fields import fields_of_yaml
from gradlab.base.json_lines import Lines, read_lines
from gradlab.base.lock import locked
from gradlab.base.option import Invalid
from gradlab.config.compose import compose
from gradlab.list import main
from gradlab.report.terminal import query
from gradlab.runs import run_list
from gradlab.runs.record import RunRecord


def make(folder: Path, verdict: str | None = "healthy", age: float = 0, *overrides: str, **numbers: Any) -> Path:
    """The files of a run that the list reads."""
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra" / "overrides.yaml").write_text("".join(f"- {o}\n" for o in overrides))
    lr = next((o.partition("=")[2] for o in overrides if o.startswith("optimizer.lr=")), "0.001")
    (folder / ".hydra" / "config.yaml").write_text(f"optimizer:\n  lr: {lr}\nclip:\n  max_norm: 1.0\nseed: 0\n")
    (folder / ".hydra" / "hydra.yaml").write_text(
        "hydra:\n  runtime:\n    choices:\n      clip: norm\n      model: lstm\n"
    )
    (folder / "metrics.jsonl").write_text("")
    measured = {"updates": 10, "skipped": 0, "loss/final": 1.0, "grad/norm_max": 2.0} | {
        {"loss": "loss/final", "norm": "grad/norm_max"}.get(k, k): v for k, v in numbers.items()
    }
    told = {"verdict": verdict, "sentence": "so", "exit_code": 0, "planned": 10, "overrides": list(overrides)}
    told |= {"measured": measured, "outcome": {"status": "completed", "seconds": 1.5, "eval": []}}
    (folder / "diagnosis.json").write_text(json.dumps(told))
    os.utime(folder / "diagnosis.json", (1e9 - age, 1e9 - age))
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A healthy run, one that exploded before, and a sweep of three jobs in between."""
    make(tmp_path / "run" / "new", "healthy", 0, "optimizer.lr=0.01", loss=0.5)
    make(tmp_path / "run" / "old", "exploding", 300, "optimizer.lr=1", loss="Infinity", norm=1e9)
    sweep = tmp_path / "exploding" / "sweep"
    for i, verdict in enumerate(("healthy", "exploding", "healthy")):
        make(sweep / str(i), verdict, 100 + i, "clip=norm", f"optimizer.lr={10**i}", loss=3.0 - i, skipped=i)
    (sweep / "multirun.yaml").write_text("")
    return tmp_path


def listed(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[dict[str, Any]]:
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def names(rows: list[dict[str, Any]], root: Path) -> list[str]:
    return [os.path.relpath(row["folder"], root) for row in rows]


def test_an_option_is_what_a_remedy_made_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = make(tmp_path / "sweep" / "0", "healthy", 0, "+remedy=clip_value")
    told = json.loads((made / "diagnosis.json").read_text())
    told["remedy"] = {"changed": {"clip": ["norm", "value"], "clip.max_value": [None, 0.1]}}
    (made / "diagnosis.json").write_text(json.dumps(told))
    assert listed(capsys, tmp_path, "--filter", "clip=norm") == []
    assert len(listed(capsys, tmp_path, "--filter", "clip=value", "model=lstm")) == 1
    assert RunRecord(made).choices == {"clip": "value", "model": "lstm"}


def test_newest_first_and_a_sweep_is_one_line(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = listed(capsys, root)
    assert names(rows, root) == ["run/new", "exploding/sweep", "run/old"]
    sweep = rows[1]
    assert (sweep["kind"], sweep["jobs"], sweep["verdicts"]) == ("sweep", 3, {"healthy": 2, "exploding": 1})
    assert (sweep["loss"], sweep["updates"], sweep["skipped"], sweep["seconds"]) == (1.0, 30, 3, 4.5)
    assert sweep["overrides"] == ["optimizer.lr=(3)", "clip=norm"]
    assert (rows[2]["loss"], rows[2]["grad_norm"]) == ("Infinity", 1e9)  # strict JSON
    assert main([str(root)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["folder", "run/new", "exploding/sweep", "run/old"]
    assert "2 healthy, 1 exploding" in lines[2] and "2001-09-09" in lines[1]


def test_each_optimizer_of_a_watched_loop_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "watch" / "gan", "clip-after-step")
    make(tmp_path / "watch" / "gan" / "optimizer1", "not_measured", 1)
    rows = listed(capsys, tmp_path)
    assert names(rows, tmp_path) == ["watch/gan", "watch/gan/optimizer1"]
    for verdict in ("clip-after-step", "not_measured"):
        assert len(listed(capsys, tmp_path, "--filter", f"verdict={verdict}")) == 1


def test_jobs_of_a_sweep(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(listed(capsys, root, "--jobs")) == 5
    rows = listed(capsys, root / "exploding" / "sweep")
    assert names(rows, root / "exploding" / "sweep") == ["0", "1", "2"]
    assert rows[1]["overrides"] == ["optimizer.lr=10", "clip=norm"]  # what differs comes first


@pytest.mark.parametrize(
    ("conditions", "found"),
    [
        (["verdict=exploding"], ["exploding/sweep", "run/old"]),
        (["verdict=exploding,healthy"], ["run/new", "exploding/sweep", "run/old"]),
        (["verdict=expl*", "kind=run"], ["run/old"]),
        (["verdict!=healthy", "loss<5"], ["exploding/sweep"]),
        (["lr>0.1"], ["exploding/sweep", "run/old"]),
        (["optimizer.lr<=0.01"], ["run/new"]),
        (["lr=1e-2"], ["run/new"]),
        (["clip=norm", "model=lstm", "lr>=100"], ["exploding/sweep"]),
        (["clip=agc"], []),
        (["loss=inf"], ["run/old"]),
        (["grad_norm>1e3"], ["run/old"]),
        (["eval_loss=none", "folder=run/*"], ["run/new", "run/old"]),
        (["time>2100"], []),
    ],
)
def test_conditions(root: Path, capsys: pytest.CaptureFixture[str], conditions: list[str], found: list[str]) -> None:
    assert names(listed(capsys, root, "--filter", *conditions), root) == found


def test_a_sweep_counts_the_jobs_that_meet_the_conditions(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = listed(capsys, root, "--filter", "lr>5", "kind=sweep")[0]
    assert (row["jobs"], row["verdicts"], row["loss"]) == (2, {"exploding": 1, "healthy": 1}, 1.0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--filter", "lr"], "must be FIELD=VALUE"),
        (["--filter", "lrr>1"], "did you mean lr?"),
        (["--filter", "loss>abc"], "> must be followed by a number"),
        (["--filter", "verdict=explodng"], "did you mean exploding?"),
        (["--filter", "verdict=spike"], "verdict must be one of healthy, nan_input"),  # a finding, and no verdict
        (["--filter", "verdict>1"], "= or != it"),
        (["--filter", "kind=job"], "must be one of run, sweep"),
        (["--sort", "nope"], "must be one of folder, kind, verdict"),
        (["--limit", "0"], "--limit=0: must be >= 1"),
        (["--limit", "x"], "see python -m gradlab.list --help"),
    ],
)
def test_wrong_commands_are_one_or_two_lines(
    root: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main([str(root), *arguments]) == 2
    told = capsys.readouterr()
    assert said in told.err and told.err.count("\n") <= 2 and not told.out


def test_a_short_name_that_two_fields_have_is_refused(root: Path) -> None:
    (root / "run" / "new" / ".hydra" / "config.yaml").write_text("schedule:\n  lr: 1\noptimizer:\n  lr: 0.1\n")
    with pytest.raises(Invalid, match=r"must be one of optimizer\.lr, schedule\.lr"):
        query.resolve("--filter", "lr", run_list.find(root / "run"))


def test_a_short_name_is_not_that_of_a_remedys_settings(root: Path) -> None:
    config = "optimizer:\n  lr: 0.1\nremedy:\n  lower_lr:\n    multiply:\n      optimizer:\n        lr: 0.3\n"
    (root / "run" / "new" / ".hydra" / "config.yaml").write_text(config)
    assert query.resolve("--filter", "lr", run_list.find(root / "run")) == "optimizer.lr"


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--sort", "loss"], ["run/new", "exploding/sweep", "run/old"]),
        (["--sort", "loss", "--reverse"], ["run/old", "exploding/sweep", "run/new"]),
        (
            ["--sort", "lr", "--jobs"],
            ["run/new", "exploding/sweep/0", "run/old", "exploding/sweep/1", "exploding/sweep/2"],
        ),
        (["--sort", "accuracy"], ["run/new", "exploding/sweep", "run/old"]),  # nobody has one
        (["--sort", "folder"], ["exploding/sweep", "run/new", "run/old"]),
        (["--reverse", "--limit", "2"], ["run/old", "exploding/sweep"]),
    ],
)
def test_order(root: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], found: list[str]) -> None:
    assert names(listed(capsys, root, *arguments), root) == found


def test_a_killed_run_has_the_evaluations_that_it_came_to(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    killed = make(root / "run" / "killed")
    (killed / "diagnosis.json").unlink()
    lines = Lines(killed / "metrics.jsonl")
    for epoch, loss in ((0, 5.0), (1, 3.0), (2, 2.0)):
        lines.write(
            {"update": epoch, "attempt": epoch, "epoch": epoch, "eval/loss": loss, "eval/accuracy": 0.1 * epoch}
        )
    lines.close()
    (row,) = listed(capsys, killed)
    assert row["verdict"] == "killed" and (row["eval_loss"], row["accuracy"]) == (2.0, 0.2)
    assert row["updates"] == 0 and row["loss"] is None


def test_what_has_no_verdict_is_told_as_what_it_is(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    killed, running, broken = (make(root / name) for name in ("killed", "running", "broken"))
    (killed / "diagnosis.json").unlink()
    (running / "diagnosis.json").unlink()
    (broken / "diagnosis.json").write_text('{"verdict": "hea')
    error = make(root / "error", None)
    (root / "cut").mkdir()
    (root / "cut" / "metrics.jsonl").write_text('{"update":1}\n{"upd\n')
    (root / "empty" / ".hydra").mkdir(parents=True)
    handle = os.open(running, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    seen = {Path(row["folder"]).name: row["verdict"] for row in listed(capsys, root)}
    os.close(handle)
    assert seen | {"new": None, "old": None, "sweep": None} == {
        **dict.fromkeys(("new", "old", "sweep")),
        **{"killed": "killed", "running": "running", "broken": "broken", error.name: "error"},
        **{"cut": "broken", "empty": "killed"},
    }
    assert {Path(row["folder"]).name for row in listed(capsys, root) if row["verdict"] == "running"} == set()


def test_a_job_is_running_while_its_sweep_is(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As lanes of one program, which holds the sweep's folder."""
    sweep = root / "exploding" / "sweep"
    (sweep / "2" / "diagnosis.json").unlink()
    assert listed(capsys, root, "--filter", "kind=sweep")[0]["verdicts"]["killed"] == 1
    handle = os.open(sweep, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    assert listed(capsys, root, "--filter", "kind=sweep")[0]["verdicts"]["running"] == 1
    os.close(handle)


def test_nothing_there_and_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 0 and "no run below" in capsys.readouterr().out
    assert main([str(tmp_path / "x")]) == 2 and "no such folder" in capsys.readouterr().err


def test_a_process_at_work_is_running_and_a_killed_one_is_killed(
    gradlab: Commands, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = gradlab.start("trainer.epochs=100000", "trainer.progress=none", "hydra.run.dir=r", cwd=tmp_path)
    try:
        wait_for(lambda: (tmp_path / "r" / "metrics.jsonl").exists() and locked(tmp_path / "r"), process)
        wait_for(lambda: (tmp_path / "r" / "metrics.jsonl").stat().st_size, process)  # can be followed
        row = listed(capsys, tmp_path)[0]
        assert row["verdict"] == "running" and row["updates"] > 0
    finally:
        process.kill()
        process.communicate()
    assert listed(capsys, tmp_path)[0]["verdict"] == "killed"


def test_lines_can_be_read_after_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a slow run too, which would take long to fill a buffer."""
    lines = Lines(tmp_path / "metrics.jsonl")
    lines.write({"update": 1})
    assert list(read_lines(tmp_path / "metrics.jsonl")) == []  # no system call a line
    monkeypatch.setattr("gradlab.base.json_lines.FLUSH_SECONDS", -1.0)
    lines.write({"update": 2})
    assert [line["update"] for line in read_lines(tmp_path / "metrics.jsonl")] == [1, 2]
    lines.close()


def test_fields_of_yaml_reads_what_omegaconf_writes() -> None:
    from omegaconf import OmegaConf

    composed = compose(["+experiment=exploding", "clip=zclip"])
    found = fields_of_yaml(OmegaConf.to_yaml(composed))
    for name in ("optimizer.lr", "clip.z_max", "trainer.epochs", "diagnosis.exploding.growth", "seed", "model.cell"):
        assert found[name] == OmegaConf.select(composed, name), name
    assert found["expect"] == "exploding" and found["pretrain"] is None
