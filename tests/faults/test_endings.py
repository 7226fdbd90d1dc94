"""Runs and sweeps that are ended from outside, or lose what they stand on: a word, and a code that is documented."""

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from forked import SHORT, Commands, Started, told

from gradlab.cli import main
from gradlab.cli.job import of_rank
from gradlab.cli.session import Resumed

LONG = ("trainer.epochs=100000", *SHORT[1:], "expect=any")


def wait_for(found: Callable[[], object], process: Started, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not found():
        assert process.poll() is None and time.monotonic() < end, process.result()
        time.sleep(0.02)


def failed(error: Exception) -> Exception:
    def deep(levels: int) -> None:
        if levels:
            deep(levels - 1)
        raise error

    try:
        deep(20)
    except type(error) as raised:
        return raised
    raise AssertionError


def test_one_rank_says_what_happened_and_the_others_do_not_repeat_it() -> None:
    said = of_rank(failed(ValueError("a\nmistake")), None, 1).splitlines()
    assert said[0] == "gradlab: rank 1: ValueError: a mistake" and len(said) <= 10, said
    gone = failed(RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:6"))
    assert of_rank(gone, None, 1) == "" and of_rank(gone, None, 0) == "gradlab: rank 0: another rank has ended\n"
    assert of_rank(gone, "seed=-1: must be", 3) == "gradlab: rank 3: seed=-1: must be\n"


def test_an_interrupt_that_nothing_else_answers_is_answered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(arguments: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "execute", interrupted)
    assert main.run([]) == 130 and capsys.readouterr().err == "gradlab: interrupted\n"


def test_what_cannot_be_written_back_is_left(tmp_path: Path) -> None:
    Resumed({tmp_path / "gone" / "config.yaml": b""}, set(), None).restore()


@pytest.mark.parametrize("wrong", ["logger=${oc.decode:'1'}"])
def test_an_error_without_words_is_given_some(gradlab: Commands, tmp_path: Path, wrong: str) -> None:
    assert len(told(gradlab(wrong, cwd=tmp_path))) > len("gradlab: \n")


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["vectorized", "basic"])
def test_sigterm_ends_a_sweep_with_a_word(gradlab: Commands, tmp_path: Path, launcher: str) -> None:
    sweep = gradlab.start(
        *("-m", "seed=0,1", "hydra.sweep.dir=s", f"hydra/launcher={launcher}", *LONG), cwd=tmp_path, timeout=120
    )
    wait_for(lambda: any(p.stat().st_size for p in tmp_path.glob("s/*/metrics.jsonl")), sweep)
    sweep.send_signal(signal.SIGTERM)
    ended = sweep.result(60)
    assert ended.code == 130 and "0 of 2 jobs have finished; the others run with" in ended.out, ended
    assert "sensitivity" not in ended.out and "error" not in ended.out and "Traceback" not in ended.err, ended


@pytest.mark.slow
def test_a_folder_that_is_removed_ends_its_run_in_a_line(gradlab: Commands, tmp_path: Path) -> None:
    run = gradlab.start("hydra.run.dir=r", "trainer.checkpoint_every=50", *LONG, cwd=tmp_path, timeout=120)
    wait_for(lambda: (tmp_path / "r" / "checkpoint.pt").is_file(), run)
    while (tmp_path / "r").exists():
        shutil.rmtree(tmp_path / "r", ignore_errors=True)
    ended = run.result(60)
    assert ended.code == 1 and ended.err == f"gradlab: {tmp_path}/r: was removed while the run was at work\n", ended


def test_a_run_whose_log_cannot_be_opened_is_refused_in_a_line(gradlab: Commands, tmp_path: Path) -> None:
    (tmp_path / "r" / "gradlab.log").mkdir(parents=True)
    assert "gradlab.log: Is a directory" in told(gradlab(*SHORT, "hydra.run.dir=r", cwd=tmp_path))


@pytest.mark.slow
def test_a_folder_that_nobody_may_change_is_told_in_a_line(gradlab: Commands, tmp_path: Path) -> None:
    assert gradlab(*SHORT, "expect=any", "hydra.run.dir=r", cwd=tmp_path).code == 0
    if subprocess.run(["chattr", "-R", "+i", tmp_path / "r"], capture_output=True).returncode:
        pytest.skip("needs root, and a file system that knows immutable files")
    try:
        for command in (("resume=r", "trainer.epochs=2"), ("hydra.run.dir=r", *SHORT), ("hydra.run.dir=r/new", *SHORT)):
            ended = gradlab(*command, cwd=tmp_path)
            assert ended.code in (1, 2) and ended.err.count("\n") == 1 and "not permitted" in ended.err, ended
        sweep = gradlab("-m", "seed=0,1", *SHORT, "hydra.sweep.dir=r/sweep", cwd=tmp_path)
        assert sweep.code in (1, 2) and sweep.err.count("\n") == 1, sweep
        assert gradlab.python("-m", "gradlab.show", "r", cwd=tmp_path).result(60).code == 0
        page = gradlab.python("-m", "gradlab.report", "r", cwd=tmp_path).result(60)
        assert page.code == 1 and page.err.count("\n") == 1, page
    finally:
        subprocess.run(["chattr", "-R", "-i", tmp_path / "r"], check=True)


def test_folders_have_any_name(gradlab: Commands, tmp_path: Path) -> None:
    name = "ü/λ 漢"
    done = gradlab(*SHORT, "expect=any", f"hydra.run.dir={name}", cwd=tmp_path)
    assert done.code == 0 and (tmp_path / name / "report.html").is_file(), done
    again = gradlab(f"resume={tmp_path}/{name}", "trainer.epochs=2", cwd=tmp_path)
    assert again.code == 0 and (tmp_path / name / "metrics.jsonl").read_text().count("train/loss") == 4, again


def test_links_above_a_runs_folder_are_followed(gradlab: Commands, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "outputs").symlink_to(tmp_path / "disk")
    assert gradlab(*SHORT, "expect=any", "hydra.run.dir=outputs/r", cwd=tmp_path).code == 0
    assert gradlab("resume=outputs/r", "trainer.epochs=2", cwd=tmp_path).code == 0
    assert (tmp_path / "disk" / "r" / "metrics.jsonl").read_text().count("train/loss") == 4


def test_a_clock_that_jumps_changes_no_duration(gradlab: Commands, tmp_path: Path) -> None:
    (tmp_path / "jumps.py").write_text(
        "import itertools, runpy, sys, time\n"
        "counted = itertools.count(2e9, -86400)\n"
        "time.time = lambda: next(counted)\n"
        "sys.argv[0] = 'gradlab'\n"
        "runpy.run_module('gradlab', run_name='__main__', alter_sys=True)\n"
    )
    command = (*SHORT, "expect=any", "logger=tensorboard", "hydra.run.dir=r")
    done = gradlab.python("jumps.py", *command, cwd=tmp_path).result(60)
    seconds = json.loads((tmp_path / "r" / "diagnosis.json").read_text())["outcome"]["seconds"]
    assert done.code == 0 and 0 < seconds < 60, done
