"""A sweep that was stopped anywhere is resumed: what has finished stays, the rest runs, and all is as if it had not.

Whatever launcher runs the jobs, what they leave is the same.
"""

import csv
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from forked import SHORT, Commands, Result, told
from helpers import environment, metrics, wait_for

from gradlab.base.json_lines import write_whole
from gradlab.sweep.resume import clear, count_finished, finished, original_command, remaining

GRADLAB = [sys.executable, "-m", "gradlab"]
LONGER = ("model.layers=2", "model.width=8", "data.samples=320", "trainer.epochs=15", "trainer.progress=none")
"""Jobs of some tenths of a second."""


def left(job: Path) -> dict[str, Any]:
    """What a job has left, but for times and what names the launcher."""
    diagnosis = json.loads((job / "diagnosis.json").read_text())
    if "outcome" in diagnosis:
        del diagnosis["outcome"]["seconds"]
    hydra = {path.name: path.read_text() for path in (job / ".hydra").iterdir() if path.name != "hydra.yaml"}
    files = sorted(path.name for path in job.iterdir())
    layers = (job / "layers.jsonl").read_text() if "layers.jsonl" in files else ""
    return {"files": sorted(files), "diagnosis": diagnosis, "metrics": metrics(job), "layers": layers, "hydra": hydra}


def same(one: Path, other: Path) -> None:
    """Two sweeps have left the same."""
    jobs = [sorted(p.name for p in sweep.iterdir() if (p / ".hydra").is_dir()) for sweep in (one, other)]
    assert jobs[0] == jobs[1] != []
    for job in jobs[0]:
        assert repr(left(one / job)) == repr(left(other / job))  # NaN is NaN
    tables = [p.name for p in one.glob("*.csv")]
    assert "results.csv" in tables and {p.name for p in other.glob("*.csv")} == set(tables)
    assert table(one) == table(other)


def table(sweep: Path) -> list[dict[str, str]]:
    """results.csv without what is of the machine."""
    rows = csv.DictReader((sweep / "results.csv").read_text().splitlines(True))
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def answers(sweep: Path) -> dict[str, int]:
    """When each job gave its answer."""
    return {path.parent.name: path.stat().st_mtime_ns for path in sweep.glob("*/diagnosis.json")}


def write(folder: Path, **changes: Any) -> None:
    content: dict[str, Any] = {"verdict": "healthy", "exit_code": 0, "remedy": None, "overrides": ["seed=1"]}
    folder.mkdir(exist_ok=True)
    (folder / "diagnosis.json").write_text(json.dumps(content | changes))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 0),
        ({"exit_code": 1, "verdict": "exploding"}, 1),
        ({"exit_code": 130}, None),  # interrupted
        ({"verdict": None, "exit_code": 1}, None),  # an error
        ({"verdict": None, "remedy": {"applies": False}}, 0),  # a remedy that does not apply
        ({"remedy": {"applies": True}}, 0),
        ({"overrides": ["seed=2"]}, None),
        ({"overrides": ["seed=1", "clip=norm"]}, None),
        ({"overrides": None}, None),
        ({"exit_code": "0"}, None),
        ({"verdict": None, "remedy": "gone"}, None),
    ],
)
def test_a_job_has_finished_when_it_gave_an_answer_under_the_same_overrides(
    tmp_path: Path, changes: dict[str, Any], expected: int | None
) -> None:
    write(tmp_path, **changes)
    assert finished(tmp_path, ["seed=1"]) == expected
    assert finished(tmp_path, ["seed=1", f"resume={tmp_path}"]) == expected


def test_a_torn_or_missing_answer_is_none(tmp_path: Path) -> None:
    assert finished(tmp_path / "nowhere", []) is None
    write(tmp_path)
    whole = (tmp_path / "diagnosis.json").read_bytes()
    for size in range(len(whole)):
        (tmp_path / "diagnosis.json").write_bytes(whole[:size])
        assert finished(tmp_path, ["seed=1"]) is None
    for other in (b"[]", b"null", b"1", b"\xff\xfe", b"{}"):
        (tmp_path / "diagnosis.json").write_bytes(other)
        assert finished(tmp_path, ["seed=1"]) is None


def test_the_answer_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "diagnosis.json"
    write_whole(path, "old")

    def full_disk(self: Path, text: str, **how: Any) -> None:
        with self.open("w") as file:
            file.write(text[:2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full_disk)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, "the new one")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_cleared_folder_holds_nothing_of_a_run_and_all_else(tmp_path: Path) -> None:
    for name in ("checkpoint.pt", "crash.pt", "metrics.jsonl", "layers.jsonl", "diagnosis.json", "notes.txt"):
        (tmp_path / name).write_text("x")
    (tmp_path / "figures").mkdir()
    (tmp_path / ".hydra").mkdir()
    clear(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"notes.txt", ".hydra"}


def test_finished_jobs_are_counted_once_and_only_those_planned(tmp_path: Path) -> None:
    for name, seed in (("0", 1), ("1", 2), ("copy_of_0", 1), ("of_another", 7)):
        write(tmp_path / name, overrides=[f"seed={seed}"])
        (tmp_path / name / ".hydra").mkdir()
        (tmp_path / name / ".hydra" / "overrides.yaml").write_text(f"- seed={seed}\n")
    write(tmp_path / "1", exit_code=130, overrides=["seed=2"])
    (tmp_path / "torn" / ".hydra").mkdir(parents=True)
    (tmp_path / "torn" / ".hydra" / "overrides.yaml").write_text("- [")
    assert count_finished(tmp_path, [["seed=1"], ["seed=2"], ["seed=3"]]) == (1, 0)


def test_jobs_that_are_wrong_by_themselves_are_told_apart_and_not_advised_to_run_again(tmp_path: Path) -> None:
    jobs = [[f"seed={i}"] for i in range(4)]
    for i, changes in enumerate(({}, {"verdict": None, "exit_code": 2}, {"verdict": None, "exit_code": 1})):
        write(tmp_path / str(i), overrides=jobs[i], **changes)
        (tmp_path / str(i) / ".hydra").mkdir()
        (tmp_path / str(i) / ".hydra" / "overrides.yaml").write_text(f"- seed={i}\n")
    others = f"the others run with: python -m gradlab resume={tmp_path}"
    wrong = "1 job has an invalid command and would fail again"
    assert remaining(tmp_path, jobs) == f"1 of 4 jobs have finished; {wrong}; {others}"
    assert remaining(tmp_path, jobs[:2]) == f"1 of 2 jobs have finished; {wrong}"
    assert remaining(tmp_path, [jobs[0], jobs[2]]) == f"1 of 2 jobs have finished; {others}"
    assert remaining(tmp_path, jobs[:1]) is None


def test_the_command_of_a_sweep_is_found_again_but_for_where_and_how_its_jobs_ran(tmp_path: Path) -> None:
    task = ["+sweep=seeds", "optimizer.lr=0.1,1"]
    mine = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.sweep.subdir=job_${hydra.job.num}"]
    silent = ["hydra.output_subdir=null", "hydra/job_logging=disabled", "hydra/hydra_logging=disabled"]
    stored = [*mine, *silent, "hydra.mode=MULTIRUN", "hydra.sweep.dir=old", "hydra.callbacks.gradlab.goes_on=true"]
    sources = [{"path": "hydra.conf", "provider": "hydra"}, {"path": "/my/conf", "provider": "command-line"}]
    runtime = {"config_sources": sources}
    content = {"overrides": {"task": task, "hydra": stored}, "runtime": runtime, "job": {"config_name": "config"}}
    (tmp_path / "multirun.yaml").write_text(json.dumps({"hydra": content}))
    flags, before, after = original_command(tmp_path, [])
    assert before == [*task, *mine] and flags == ["--multirun", "--config-name=config", "--config-dir=/my/conf"]
    assert after == [f"hydra.sweep.dir='{tmp_path}'", "hydra.callbacks.gradlab.goes_on=true"]
    assert original_command(tmp_path, ["hydra/launcher=basic"])[1] == [*task, mine[-1]]
    assert original_command(tmp_path, ["hydra.launcher.n_jobs=1"])[1] == [*task, mine[0], mine[-1]]


def stopped(gradlab: Commands, folder: Path, sweep: list[str], after: int, how: int, group: bool) -> tuple[int, str]:
    """Begin a sweep; once some jobs have finished, signal its process (or, as a terminal does, all of them)."""
    (folder / "stopped").mkdir(exist_ok=True)
    process = gradlab.start(*sweep, "hydra.sweep.dir=stopped", cwd=folder, joined=True)
    wait_for(lambda: len(answers(folder / "stopped")) >= after, process)
    (os.killpg if group else os.kill)(process.pid, how)
    said, _ = process.communicate(timeout=60)
    return process.wait(), said


SWEEP = ["+sweep=seeds", "seed=0,1,2,3", *LONGER, "expect=healthy"]


@pytest.fixture(scope="module")
def whole(gradlab: Commands, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The sweep that nobody stops."""
    folder = tmp_path_factory.mktemp("whole")
    result = gradlab(*SWEEP, "hydra.sweep.dir=whole", cwd=folder)
    rows = list(csv.DictReader((folder / "whole" / "results.csv").read_text().splitlines(True)))
    assert len(rows) == 4 and result.code == max(int(row["exit_code"]) for row in rows), result
    return folder / "whole", result.code


HERE = pytest.param("basic", id="basic")
JOBLIB = pytest.param("joblib", id="joblib", marks=pytest.mark.slow)
SUBMITIT = pytest.param("submitit_local", id="submitit", marks=pytest.mark.slow)


def need(launcher: str) -> str:
    """The override that chooses a launcher; skip where its extra is not installed."""
    if launcher != "basic":
        pytest.importorskip(f"hydra_plugins.hydra_{launcher.split('_')[0]}_launcher")
    return f"hydra/launcher={launcher}"


@pytest.mark.slow
def test_killed_it_goes_on_and_ends_as_if_it_had_not_been(
    gradlab: Commands, tmp_path: Path, whole: tuple[Path, int]
) -> None:
    """Under other launchers: tests/faults/test_kills.py."""
    code, _ = stopped(gradlab, tmp_path, SWEEP, 2, signal.SIGKILL, group=False)
    assert code == -signal.SIGKILL
    sweep = tmp_path / "stopped"
    done = answers(sweep)
    assert not (sweep / "results.csv").exists() and 2 <= len(done) < 4
    (sweep / "1" / "diagnosis.json").write_text('{"verdict": "hea')  # torn, as no kill leaves it
    (sweep / "multirun.yaml").write_text("hydra: {overrides: {ta")  # as a kill may leave it
    result = gradlab("resume=stopped", cwd=tmp_path, timeout=200)
    assert result.code == whole[1], result
    same(sweep, whole[0])
    after = answers(sweep)
    assert {job: after[job] for job in done if job != "1"} == {job: done[job] for job in done if job != "1"}
    once_more = gradlab("resume=stopped/", "hydra/launcher=basic", cwd=tmp_path)
    assert once_more.code == whole[1] and answers(sweep) == after and "jobs have finished" not in once_more.out
    assert "== verdict" not in once_more.out, "nothing ran"


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [HERE, SUBMITIT])
def test_ctrl_c_ends_it_with_what_there_is_and_how_to_resume(
    gradlab: Commands, tmp_path: Path, whole: tuple[Path, int], launcher: str
) -> None:
    code, said = stopped(gradlab, tmp_path, [*SWEEP, need(launcher)], 1, signal.SIGINT, group=True)
    done = len([job for job in answers(tmp_path / "stopped") if finished_as_planned(tmp_path / "stopped" / job)])
    assert code == 130, said
    assert "Traceback" not in said or launcher == "submitit_local", said  # submitit's own processes end in one
    assert f"{done} of 4 jobs have finished; the others run with: python -m gradlab resume=stopped" in said
    assert (tmp_path / "stopped" / "results.csv").is_file()
    assert gradlab("resume=stopped", cwd=tmp_path, timeout=200).code == whole[1]
    same(tmp_path / "stopped", whole[0])


def test_ctrl_c_with_the_last_update_of_a_job_ends_the_sweep(gradlab: Commands, tmp_path: Path) -> None:
    """A signal that comes when there is no further update to leave out."""
    (tmp_path / "late.py").write_text(
        "import signal\nimport torch\n\n\nclass Late(torch.nn.Linear):\n"
        "    trained, asked = False, False\n\n"
        "    def forward(self, x):\n"
        "        Late.trained = Late.trained or (self.training and torch.is_grad_enabled() and x.shape[0] == 32)\n"
        "        if Late.trained and not self.training and not Late.asked:\n"
        "            Late.asked = True\n            signal.raise_signal(signal.SIGINT)\n"
        "        return super().forward(x.flatten(1))\n"
    )
    model = ["model=custom", "model.target=late:Late", "+model.kwargs={in_features: 64, out_features: 10}"]
    sizes = [
        "data=digits",
        "data.samples=64",
        "data.batch_size=32",
        "trainer.epochs=1",
        "trainer.progress=none",
        "expect=any",
    ]
    result = gradlab("-m", "seed=0,1", *model, *sizes, "hydra.sweep.dir=late", cwd=tmp_path)
    assert result.code == 130, result
    assert json.loads((tmp_path / "late" / "0" / "diagnosis.json").read_text())["exit_code"] == 0
    assert "1 of 2 jobs have finished" in result.out + result.err, result
    assert not (tmp_path / "late" / "1" / "diagnosis.json").exists()


def test_ctrl_c_while_the_next_job_is_composed_ends_the_sweep(gradlab: Commands, tmp_path: Path) -> None:
    """Also where the code that it meets swallows it."""
    (tmp_path / "net.py").write_text(
        "import signal\nimport torch\nfrom hydra._internal.config_loader_impl import ConfigLoaderImpl as Loader\n\n"
        "compose = Loader.load_configuration\n\n\n"
        "def swallowing(*args, **kwargs):\n"
        "    try:\n        signal.raise_signal(signal.SIGINT)\n    except KeyboardInterrupt:\n        pass\n"
        "    return compose(*args, **kwargs)\n\n\n"
        "def make():\n    Loader.load_configuration = swallowing\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))\n"
    )
    given = [
        "model=custom",
        "model.target=net:make",
        "data=digits",
        "data.samples=64",
        "trainer.epochs=1",
        "expect=any",
    ]
    result = gradlab("-m", "seed=0,1", *given, "hydra.sweep.dir=swept", cwd=tmp_path)
    assert result.code == 130 and "1 of 2 jobs have finished" in result.out, result
    assert not (tmp_path / "swept" / "1" / "diagnosis.json").exists()


def finished_as_planned(job: Path) -> bool:
    told = json.loads((job / "diagnosis.json").read_text())
    return told["exit_code"] != 130


@pytest.mark.slow
def test_edited_jobs_and_what_was_not_of_them_run_anew(gradlab: Commands, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    assert gradlab("-m", *SHORT, "expect=any", "seed=0,1,2,3", "hydra.sweep.dir=sweep", cwd=tmp_path).code == 0
    before, kept = answers(sweep), left(sweep / "1")
    edited = json.loads((sweep / "0" / "diagnosis.json").read_text())
    edited["overrides"][-1] = "seed=9"
    (sweep / "0" / "diagnosis.json").write_text(json.dumps(edited))
    shutil.rmtree(sweep / "2")
    (sweep / "3" / ".hydra" / "overrides.yaml").write_text("- seed=5\n")  # of no account: what it ran with is written
    (sweep / "0" / "report.html").write_text("of another run")
    assert gradlab("resume=sweep", cwd=tmp_path).code == 0
    after = answers(sweep)
    assert after["1"] == before["1"] and after["3"] == before["3"] and after["0"] != before["0"]
    assert left(sweep / "1") == kept and "<title>" in (sweep / "0" / "report.html").read_text()
    seeds = [line.removeprefix("- seed=") for job in "0123" for line in overrides(sweep / job) if "seed" in line]
    assert seeds == ["0", "1", "2", "3"]


def overrides(job: Path) -> list[str]:
    return (job / ".hydra" / "overrides.yaml").read_text().splitlines()


@pytest.mark.slow
def test_errors_run_again_once_their_cause_is_fixed(gradlab: Commands, tmp_path: Path) -> None:
    net = tmp_path / "nets_of_mine.py"
    (tmp_path / "data_of_mine.py").write_text(
        "import torch\ndef make():\n    return torch.randn(32, 64), torch.arange(32) % 10\n"
    )
    net.write_text("import torch\ndef net(width):\n    1 / (width - 2)\n    return torch.nn.Linear(64, 10)\n")
    mine = ["model=custom", "model.target=nets_of_mine:net", "data=custom", "data.target=data_of_mine:make"]
    widths = ["+model.kwargs.width=1,2", "expect=any", "trainer.epochs=1", "hydra.sweep.dir=sweep"]
    result = gradlab("-m", *mine, *widths, cwd=tmp_path)
    assert result.code == 1 and "1 of 2 jobs have finished; the others run with" in result.out
    done = answers(tmp_path / "sweep")
    net.write_text("import torch\ndef net(width):\n    return torch.nn.Linear(64, 10)\n")
    assert gradlab("resume=sweep", cwd=tmp_path).code == 0
    after = answers(tmp_path / "sweep")
    assert after["0"] == done["0"] and after["1"] != done["1"]


@pytest.mark.slow
def test_remedies_that_do_not_apply_and_those_applied_are_left_as_they_are(gradlab: Commands, tmp_path: Path) -> None:
    given = ["-m", *SHORT, "+remedy=none,relu,pre_norm", "hydra.sweep.dir=sweep"]
    first = gradlab(*given, cwd=tmp_path)
    assert first.code == 0 and "does not apply" in first.out, first
    sweep = tmp_path / "sweep"
    jobs = {job.name: left(job) for job in sweep.iterdir() if (job / ".hydra").is_dir()}
    before = table(sweep)
    assert len(jobs) == len(before) == 3 and (sweep / "comparison.csv").is_file()
    shutil.rmtree(sweep / "0")
    again = gradlab("resume=sweep", cwd=tmp_path)
    assert again.code == 0 and again.out.count("== verdict") == 1
    assert {job.name: left(job) for job in sweep.iterdir() if (job / ".hydra").is_dir()} == jobs
    assert table(sweep) == before


WRONG = {
    "resume=sweep trainer.epochs=2": "a sweep resumes with its own overrides; trainer.epochs=2 would change it",
    "resume=sweep hydra/launcher=nope": "hydra/launcher=nope: must be one of ",
    "resume=empty": "resume=empty: must be the folder of a run or of a sweep",
    "resume=torn": "resume=torn: its multirun.yaml cannot be read; start the sweep again",
    "resume=other": "resume=other: its multirun.yaml cannot be read; start the sweep again",
}


@pytest.fixture(scope="module")
def swept(gradlab: Commands, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swept")
    assert gradlab("-m", *SHORT, "expect=any", "seed=0,1", "hydra.sweep.dir=sweep", cwd=folder).code == 0
    for name, text in (("torn", "hydra: {overrides: {ta"), ("other", "a: 1")):
        (folder / name).mkdir()
        (folder / name / "multirun.yaml").write_text(text)
    (folder / "empty").mkdir()
    return folder


def test_what_hydra_wrote_may_be_cut_short(swept: Path) -> None:
    """Every rank writes it, and each resumption does so anew."""
    sweep = swept / "sweep"
    command, text = original_command(sweep, []), (sweep / "multirun.yaml").read_text()
    (sweep / "multirun.yaml").write_text(text[: len(text) // 2])
    assert original_command(sweep, []) == command
    (sweep / "multirun.yaml").write_text(text)


@pytest.mark.parametrize("arguments", WRONG)
def test_what_cannot_go_on_is_told_in_a_line_and_changes_nothing(
    gradlab: Commands, swept: Path, arguments: str
) -> None:
    before = answers(swept / "sweep")
    assert WRONG[arguments] in told(gradlab(*arguments.split(" "), cwd=swept))
    assert answers(swept / "sweep") == before and (swept / "sweep" / "multirun.yaml").is_file()


@pytest.mark.slow
def test_one_run_of_a_sweep_is_resumed_alone(gradlab: Commands, tmp_path: Path) -> None:
    given = ["+sweep=seeds", "seed=0,1", *SHORT, "hydra.sweep.dir=sweep"]
    assert gradlab(*given, cwd=tmp_path).code == 0
    result = gradlab("resume=sweep/1", "trainer.epochs=2", cwd=tmp_path)
    assert result.code == 0 and result.out.count("== verdict") == 1, result
    assert not (tmp_path / "outputs").exists()
    assert [line["update"] for line in metrics(tmp_path / "sweep" / "1") if "train/loss" in line] == [1, 2, 3, 4]
    done = answers(tmp_path / "sweep")
    assert gradlab("resume=sweep", cwd=tmp_path).code == 0  # under its own overrides it has not finished now
    assert answers(tmp_path / "sweep")["0"] == done["0"] and answers(tmp_path / "sweep")["1"] != done["1"]


@pytest.mark.slow
def test_two_at_once_are_two_sweeps(gradlab: Commands, tmp_path: Path) -> None:
    both = [gradlab.start("-m", *SHORT, "expect=any", "seed=0,1", cwd=tmp_path) for _ in range(2)]
    assert [process.wait(120) for process in both] == [0, 0]
    sweeps = sorted((tmp_path / "outputs" / "run").iterdir())
    assert len(sweeps) == 2
    same(*sweeps)


NETS = """
import os, torch
from pathlib import Path
def net(what):
    Path(f"threads_{os.getpid()}").write_text(str(torch.get_num_threads()))
    if what == "fault": 1 / 0
    if what == "exit": raise SystemExit(3)
    if what == "lost": os.kill(os.getpid(), 9)
    return torch.nn.Linear(64, 10)
def data():
    torch.manual_seed(0)
    return torch.randn(320, 64), torch.arange(320) % 10
"""

HURRY = """
try:
    from submitit.core.core import Job
    Job._results_timeout_s = 1
except ImportError:
    pass
"""
"""Submitit waits half a minute for the result of a process that is lost."""


def custom(folder: Path, launcher: str, whats: str) -> Result:
    """A sweep over what a user's own model does, with the threads that PyTorch takes when nothing says how many."""
    (folder / "mine.py").write_text(NETS)
    (hurry := folder / "__hurry__").mkdir()
    (hurry / "sitecustomize.py").write_text(HURRY)
    mine = ["model=custom", "model.target=mine:net", "data=custom", "data.target=mine:data", "trainer.epochs=1"]
    sweep = ["-m", *mine, f"+model.kwargs.what={whats}", "expect=any", f"hydra.sweep.dir={launcher}"]
    named = {k: v for k, v in environment().items() if k not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    named["PYTHONPATH"] = os.pathsep.join([str(hurry), named["PYTHONPATH"]])
    ended = subprocess.run(
        [*GRADLAB, *sweep, f"hydra/launcher={launcher}"],
        cwd=folder,
        env=named,
        capture_output=True,
        text=True,
        timeout=200,
    )
    return Result(ended.returncode, ended.stdout, ended.stderr)


@pytest.mark.parametrize("launcher", [JOBLIB, SUBMITIT])
def test_processes_share_the_cores_and_a_fault_in_one_ends_no_other(
    gradlab: Commands, tmp_path: Path, launcher: str
) -> None:
    need(launcher)
    result = custom(tmp_path, launcher, "good,fault,exit,well")
    rows = list(csv.DictReader((tmp_path / launcher / "results.csv").read_text().splitlines(True)))
    assert [row["exit_code"] for row in rows] == ["0", "1", "1", "0"] and result.code == 1, result
    assert [p.name for p in tmp_path.iterdir() if p.is_dir() and "__" not in p.name] == [launcher], "one folder"
    threads = [int(p.read_text()) for p in tmp_path.glob("threads_*")]
    cores = len(os.sched_getaffinity(0))
    assert threads and max(threads) == 1, f"as many processes as cores ({cores}), one core each"
    again = gradlab(f"resume={launcher}", "hydra/launcher=basic", "--trust", cwd=tmp_path)
    assert again.code == 1 and "ZeroDivisionError" in again.err and again.out.count("== verdict") == 0


@pytest.mark.parametrize("launcher", [JOBLIB, SUBMITIT])
def test_a_process_that_is_lost_is_told_with_what_is_left_to_do(tmp_path: Path, launcher: str) -> None:
    need(launcher)
    result = custom(tmp_path, launcher, "good,lost")
    assert result.code == 1 and "Traceback" not in result.err, result
    assert "gradlab: a process of the sweep was lost: " in result.err
    assert f"of 2 jobs have finished; the others run with: python -m gradlab resume={launcher}" in result.out
    assert (tmp_path / launcher / "results.csv").is_file()


@pytest.mark.parametrize("launcher", [SUBMITIT])
def test_every_launcher_leaves_the_same(gradlab: Commands, tmp_path: Path, launcher: str) -> None:
    """Remedies too, with their comparison, and jobs that fail; seconds a sample are of the machine."""
    given = ["-m", *SHORT, "+remedy=none,pre_norm", "clip=norm", "clip.max_norm=1,-1"]
    here = gradlab(*given, "hydra.sweep.dir=in_one", cwd=tmp_path)
    there = gradlab(*given, need(launcher), cwd=tmp_path, timeout=200)
    assert here.code == there.code == 2, there
    (in_many,) = (tmp_path / "outputs" / "run").iterdir()  # all of them named it alike
    same(in_many, tmp_path / "in_one")

    def said_of(said: str) -> list[str]:
        return [line for line in said.splitlines() if " of 4 jobs" not in line and "[HYDRA]" not in line]

    shown = [
        said_of(r.out)[said_of(r.out).index(" job  verdict          eval loss  overrides") :] for r in (here, there)
    ]
    assert shown[1] == [line.replace("in_one", str(in_many.relative_to(tmp_path))) for line in shown[0]]


@pytest.mark.slow
def test_jobs_that_need_the_same_pretrained_weights_train_them_once(gradlab: Commands, tmp_path: Path) -> None:
    need("joblib")
    experiment = tmp_path / "conf" / "experiment"
    experiment.mkdir(parents=True)
    head = "# @package _global_\n"
    (experiment / "first.yaml").write_text(f"{head}model: {{layers: 2, width: 8}}\ntrainer: {{epochs: 60}}\n")
    (experiment / "second.yaml").write_text(f"{head}pretrain: first\nmodel: {{layers: 2, width: 8}}\n")
    given = ["--config-dir", "conf", "-m", "+experiment=second", "trainer.epochs=1", "seed=0", "expect=any"]
    sweep = [*given, "optimizer.lr=0.001,0.002", "hydra/launcher=joblib", "trainer.progress=plain"]
    ended = gradlab(*sweep, "hydra.sweep.dir=sweep", cwd=tmp_path, timeout=200)
    assert ended.code == 0 and ended.out.count("pretraining, once") == 1, ended
    assert len(list((tmp_path / "outputs" / "pretrained").glob("first-*/checkpoint.pt"))) == 1


@pytest.mark.slow
@pytest.mark.distributed
def test_under_torchrun_it_goes_on_too_and_takes_no_launcher_that_starts_processes(
    gradlab: Commands, tmp_path: Path
) -> None:
    given = ("-m", "gradlab", "-m", *SHORT, "expect=any", "seed=0,1,2", "data.batch_size=16", "hydra.sweep.dir=sweep")
    assert gradlab.torchrun(2, *given, cwd=tmp_path).code == 0
    shutil.copytree(tmp_path / "sweep", tmp_path / "whole")
    (tmp_path / "sweep" / "results.csv").unlink()
    shutil.rmtree(tmp_path / "sweep" / "1")
    before = answers(tmp_path / "sweep")
    ended = gradlab.torchrun(2, "-m", "gradlab", "resume=sweep", cwd=tmp_path)
    assert ended.code == 0 and ended.out.count("== verdict") == 1, ended
    after = answers(tmp_path / "sweep")
    assert all(after[job] == before[job] for job in ("0", "2"))
    same(tmp_path / "sweep", tmp_path / "whole")
    refused = gradlab.torchrun(2, "-m", "gradlab", "resume=sweep", "hydra/launcher=joblib", cwd=tmp_path)
    assert refused.code != 0 and "not under torchrun" in refused.err


HIDE = """
try:
    import hydra_plugins
    hydra_plugins.__path__ = []
except ImportError:
    pass
"""


@pytest.mark.parametrize(
    ("launcher", "extra"), [pytest.param("joblib", "joblib", marks=pytest.mark.slow), ("submitit_slurm", "submitit")]
)
def test_a_missing_extra_is_told_with_the_command_that_installs_it(tmp_path: Path, launcher: str, extra: str) -> None:
    """Where it is installed, as in a complete environment, its plugin is hidden."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(HIDE)
    env = environment() | {"PYTHONPATH": os.pathsep.join([str(hidden), environment()["PYTHONPATH"]])}
    arguments = [*GRADLAB, "-m", f"hydra/launcher={launcher}", "seed=0,1"]
    ended = subprocess.run(arguments, cwd=tmp_path, env=env, capture_output=True, text=True)
    said = f"gradlab: hydra/launcher={launcher}: needs an extra: pip install 'gradlab[{extra}]'\n"
    assert ended.returncode == 2 and ended.stderr == said
