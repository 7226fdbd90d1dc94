"""What is said of a sweep while its jobs run, from their folders."""

import json
import signal
import time
from pathlib import Path

import pytest
from forked import SHORT, Commands
from sweeps import job

from gradlab.sweep import progress
from gradlab.sweep.progress import SweepWatch, begins


def running(folder: Path, planned: int, made: int) -> None:
    folder.mkdir()
    (folder / "environment.json").write_text(json.dumps({"planned": planned}))
    lines = [json.dumps({"update": i + 1, "train/loss": 1.0}) for i in range(made)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + '\n{"upda')


def test_jobs_that_ended_and_parts_of_those_that_run_tell_the_time_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job(tmp_path / "0", ["seed=0"], [1.0])  # it ended before the sweep was resumed: it says nothing of the rate
    watch = SweepWatch(tmp_path, 11)
    watch.stop()
    assert "1 of 11 jobs have ended, 0 run" in watch.text() and "left" not in watch.text()
    running(tmp_path / "1", 1000, 500)
    monkeypatch.setattr(time, "monotonic", lambda: watch.began + 10)
    assert watch.text() == "1 of 11 jobs have ended, 1 run, 10 s, about 3 min left"
    job(tmp_path / "2", ["seed=2"], [1.0])
    assert watch.text() == "2 of 11 jobs have ended, 1 run, 10 s, about 57 s left"


def test_a_sweep_that_is_resumed_knows_how_long_its_jobs_take(tmp_path: Path) -> None:
    assert begins(tmp_path / "none", 4) == "4 jobs"
    for number in range(2):
        job(tmp_path / str(number), [], [1.0])  # a second each
    assert (
        begins(tmp_path, 302) == "302 jobs, of which 2 have ended, after 1 s each; the others, one by one: about 5 min"
    )


def test_nothing_that_happens_to_the_folder_ends_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "PAUSES", (0.01,) * 9)
    running(tmp_path / "0", 10, 2)
    (tmp_path / "1").mkdir()
    for name in ("metrics.jsonl", "environment.json"):
        (tmp_path / "1" / name).write_text("[]\n[]\n")
    watch = SweepWatch(tmp_path, None)
    watch.thread.join(1)
    watch.stop()
    assert capsys.readouterr().out.count("0 jobs have ended, 2 run, 0 s\n") == 9


@pytest.mark.slow
def test_a_line_is_printed_within_seconds(gradlab: Commands, tmp_path: Path) -> None:
    long = ("trainer.epochs=100000", *SHORT[1:], "expect=any")
    sweep = gradlab.start("-m", "seed=0,1", "hydra.sweep.dir=s", *long, cwd=tmp_path, timeout=120)

    def seen(text: str, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not sweep.out.exists() or text not in sweep.out.read_text():
            assert sweep.poll() is None and time.monotonic() < end, text
            time.sleep(0.05)

    seen("2 jobs\n", 60)
    seen("0 of 2 jobs have ended, 1 run", 10)
    sweep.send_signal(signal.SIGINT)
    assert sweep.result(60).code == 130
