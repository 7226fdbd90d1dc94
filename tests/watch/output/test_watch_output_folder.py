"""The folder of a watch: when it is created, by which rank, and what happens if it cannot be written."""

import os
import signal
import time
from pathlib import Path

import pytest
from torch.optim import SGD
from watched_loops import batches, lines, loss_of, net, pair, train

import gradlab
from gradlab.runs import run_list
from gradlab.runs.record import RunRecord
from gradlab.watch.patches import PATCHES


def test_a_folder_is_created_when_there_is_something_to_write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, optimizer = pair()
    watch = gradlab.watch(model, optimizer, quiet=True)
    assert "nothing was observed yet" in watch.report()
    assert "outputs" not in watch.report()
    with gradlab.watch(net(), quiet=True):  # without an optimizer
        pass
    assert not list(tmp_path.iterdir())
    with watch:
        train(model, optimizer)
    assert (tmp_path / watch.folder / "report.html").is_file()


@pytest.mark.parametrize("rank, ranks, writes", [("1", "2", False), ("0", "2", True), ("1", "1", True)])
def test_rank_0_writes(rank, ranks, writes, tmp_path, monkeypatch):
    """Also before the process group is initialized."""
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", ranks)
    model, optimizer = pair()
    with gradlab.watch(model, optimizer, folder=tmp_path / "run", quiet=True) as watch:
        train(model, optimizer)
    assert (tmp_path / "run").exists() is watch.main is writes
    assert ("folder: " in watch.report()) is writes


def test_a_relative_folder_stays_where_it_was(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    model, optimizer = pair()
    with gradlab.watch(model, optimizer, folder="run", quiet=True):
        train(model, optimizer, 3)
        monkeypatch.chdir(tmp_path / "elsewhere")
        train(model, optimizer, 3)
    assert (tmp_path / "run" / "report.html").is_file()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_full_disk_ends_the_writing_and_not_the_watch(tmp_path, monkeypatch, capsys):
    model, optimizer = pair()
    with gradlab.watch(model, optimizer, folder=tmp_path) as watch:
        train(model, optimizer)
        files = watch.loop.outputs[0].files

        def full(*args):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("gradlab.base.json_lines.Lines.write", full)
        monkeypatch.setattr("gradlab.base.json_lines.Lines.close", full)
        monkeypatch.setattr("gradlab.runs.diagnosis_file.write_json", full)
        for batch in batches(3):
            loss_of(model, batch).backward()
            optimizer.step()
    assert not watch.broken
    assert [(fault.code, fault.update) for fault in watch.faults] == [("GL305", 7)]
    assert "(9 updates)" in watch.report()
    assert "is incomplete: [Errno 28] No space left" in watch.report()
    assert capsys.readouterr().err.count("No space left") == 1
    for each in (files.metrics, files.layers):
        each.file.close()
    assert not PATCHES


def test_a_folder_that_cannot_be_created(tmp_path, monkeypatch):
    def refuse(*args, **given):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    model, optimizer = pair()
    with (
        pytest.raises(ValueError, match=r"^watch: folder is '.*', which cannot be created: .*Permission denied"),
        gradlab.watch(model, optimizer, folder=tmp_path / "run", quiet=True),
    ):
        pass
    assert not PATCHES


def test_files_of_an_earlier_watch_are_removed(tmp_path):
    model, optimizer = pair()
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True):
        train(model, optimizer)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True):
        assert {p.name for p in tmp_path.iterdir()} == {"metrics.jsonl", "layers.jsonl", "environment.json"}
        assert RunRecord(tmp_path).state == "running"


KILLED = """
import os, signal, torch, gradlab
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
with gradlab.watch(model, optimizer, folder="run"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_watch_is_listed_as_killed(gradlab, tmp_path):
    assert gradlab.python("-c", KILLED, cwd=tmp_path).wait() == -signal.SIGKILL
    assert [entry.verdict for entry in run_list.find(tmp_path)] == ["killed"]


def test_a_forked_process_writes_nothing(tmp_path):
    model, optimizer = pair()
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        train(model, optimizer)
        if not (child := os.fork()):
            try:
                train(model, optimizer, 50)
                watch.__exit__(None, None, None)
                for file in (watch.loop.outputs[0].files.metrics, watch.loop.outputs[0].files.layers):
                    file.file.flush()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert not (tmp_path / "diagnosis.json").exists()
        train(model, optimizer)
    assert [line["attempt"] for line in lines(tmp_path)] == [*range(1, 13)]


def test_watches_of_the_same_second_have_different_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda form: "now")
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for count in (3, 4):
        with gradlab.watch(model, optimizer, quiet=True) as watch:
            train(model, optimizer, count)
    assert watch.folder == Path("outputs/watch/now_2")
    kept = [len(lines(Path("outputs/watch", name))) for name in ("now", "now_2")]
    assert kept == [3, 4]
    with pytest.raises(TypeError):
        gradlab.watch(optimizer, quiet=True)
    assert len(list(Path("outputs/watch").iterdir())) == 2  # wrong arguments leave nothing
