"""A run that ends anywhere and is resumed ends with bitwise what the uninterrupted one ends with."""

import errno
import os
import random
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import Commands
from helpers import differences, load, metrics, of_the_run, resumed, trainer, wait_for

from gradlab.base.option import Invalid
from gradlab.train import build, checkpoint, snapshot
from gradlab.train.snapshot import NEEDED
from gradlab.train.trainer import Trainer

# Dropout, noise, a moving loss scale with skipped updates, a clip that remembers, a schedule, and a remainder: 10
# samples make micro-batches of 3, 3, 3 and 1, and windows of 6 and 4.
EVERYTHING = (
    *("model=transformer", "model.layers=1", "model.width=16", "model.dropout=0.1", "data.length=8"),
    *("data.batch_size=3",),
    *("data.samples=10", "data.test_samples=4", "data.variable_length=true", "accumulation.steps=2", "noise=gaussian"),
    *("precision=fp16", "precision.growth_interval=2", f"precision.init_scale={2.0**20}", "clip=autoclip"),
    *("clip.history=5", "schedule=warmup_cosine", "schedule.warmup=3", "monitor.every=2"),
)


class Copying(Trainer):
    """Keeps a copy of its folder at every update, as a kill there would leave it."""

    def stop_asked(self) -> bool:
        for sink in self.sinks:
            sink.save()
        shutil.copytree(self.folder, self.folder.with_name(f"killed_{self.update.attempts}"))
        return super().stop_asked()


@pytest.mark.parametrize("every", [1, 3])
def test_killed_at_any_update_and_resumed_it_ends_the_same(tmp_path: Path, every: int) -> None:
    overrides = (*EVERYTHING, "trainer.epochs=4", f"trainer.checkpoint_every={every}")
    whole = trainer(tmp_path / "whole", *overrides, cls=Copying)
    outcome = whole.run()
    expected, lines = of_the_run(load(tmp_path / "whole")), metrics(tmp_path / "whole")
    assert outcome.status == "completed" and 0 < outcome.applied < outcome.attempts == 8
    killed = sorted(tmp_path.glob("killed_*"))
    assert len(killed) == 8
    for folder in killed:
        if not (folder / "checkpoint.pt").is_file():
            assert int(folder.name.removeprefix("killed_")) <= every
            continue
        torch.randn(3)  # whatever the generators were at
        again = resumed(folder, *overrides).run()
        assert differences(of_the_run(load(folder)), expected) == [], folder.name
        assert differences(metrics(folder), lines) == [], folder.name
        assert (folder / "layers.jsonl").read_text() == (tmp_path / "whole" / "layers.jsonl").read_text()
        assert (again.attempts, again.applied, again.epoch) == (outcome.attempts, outcome.applied, outcome.epoch)


@pytest.mark.parametrize("limit", [None, 3, 4], ids=["epochs", "within_an_epoch", "end_of_an_epoch"])
def test_resuming_a_completed_run_changes_nothing(tmp_path: Path, limit: int | None) -> None:
    overrides = (*EVERYTHING, "trainer.epochs=4", *([] if limit is None else [f"trainer.updates={limit}"]))
    outcome = trainer(tmp_path, *overrides).run()
    expected, lines = of_the_run(load(tmp_path)), metrics(tmp_path)
    again = resumed(tmp_path, *overrides).run()
    assert differences(of_the_run(load(tmp_path)), expected) == []
    assert differences(metrics(tmp_path), lines) == []
    assert (again.applied, again.epoch, again.epochs_completed) == (
        outcome.applied,
        outcome.epoch,
        outcome.epochs_completed,
    )


def test_a_run_of_a_few_updates_can_be_made_longer(tmp_path: Path) -> None:
    """A limit in updates is no position: what the shorter run did is what the longer one did first."""
    overrides = (*EVERYTHING, "trainer.epochs=4", "trainer.evaluate_every=0", "schedule=warmup")
    trainer(tmp_path / "long", *overrides, "trainer.updates=4").run()
    trainer(tmp_path / "short", *overrides, "trainer.updates=1").run()
    resumed(tmp_path / "short", *overrides, "trainer.updates=4").run()
    assert differences(of_the_run(load(tmp_path / "short")), of_the_run(load(tmp_path / "long"))) == []
    assert differences(metrics(tmp_path / "short"), metrics(tmp_path / "long")) == []


def test_what_is_given_anew_overrules_what_the_checkpoint_had(tmp_path: Path) -> None:
    trainer(tmp_path, *EVERYTHING, "trainer.updates=2").run()
    run = resumed(tmp_path, *EVERYTHING, "trainer.epochs=1", "optimizer.weight_decay=0.3", "clip.history=9")
    run.run()
    assert run.update.optimizer.param_groups[0]["weight_decay"] == 0.3
    run = resumed(tmp_path, *(o for o in EVERYTHING if not o.startswith("clip")), "trainer.epochs=2", "clip=zclip")
    assert run.run().status == "completed"


@pytest.mark.parametrize("field", ["resume", "init_from"])
def test_a_whole_checkpoint_of_a_divided_model_stays_on_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    """One device need not hold what is divided among many."""
    trainer(tmp_path, "trainer.updates=1").run()
    found, read = list[Any](), torch.load

    def recorded(*args: Any, **kwargs: Any) -> Any:
        found.append(kwargs["map_location"])
        return read(*args, **kwargs)

    monkeypatch.setattr(torch, "load", recorded)
    monkeypatch.setattr(build, "try_out", lambda *_: [])
    monkeypatch.setattr(build, "load_weights", lambda *_: None)
    monkeypatch.setattr(snapshot, "restore", lambda *_: [0, 0])
    run, elsewhere = trainer(tmp_path), torch.device("meta")
    run.config = replace(run.config, **{field: str(tmp_path)})
    if field == "resume":
        run.sharded, run.device = True, elsewhere
        run.begin()
        run.close()
    else:
        build.build_model(run.config, run.data, run.loss, elsewhere, run.world)
    assert found == ["cpu"]


def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    trainer(tmp_path, "model.layers=2", "trainer.updates=1").run()
    with pytest.raises(Invalid, match=r"resume=.*does not fit the model"):
        resumed(tmp_path, "model.layers=3").run()
    with pytest.raises(Invalid, match=r"resume=.*does not fit the optimizer"):
        resumed(tmp_path, "model.layers=2", "optimizer=sgd").run()
    with pytest.raises(Invalid, match=r"precision=fp16: the checkpoint holds no loss scale"):
        resumed(tmp_path, "model.layers=2", "precision=fp16").run()
    (tmp_path / "checkpoint.pt").write_bytes(b"half of it")
    with pytest.raises(Invalid, match="cannot be read as a checkpoint"):
        resumed(tmp_path, "model.layers=2").run()


def test_a_foreign_or_damaged_checkpoint_is_refused_in_a_line(tmp_path: Path) -> None:
    """Whatever stands where: a value of another kind is never followed by anything but `Invalid`."""
    trainer(tmp_path, *EVERYTHING, "trainer.updates=1").run()
    path, state = tmp_path / "checkpoint.pt", load(tmp_path)
    for content in (b"", b"half of it", path.read_bytes()[:5000]):
        path.write_bytes(content)
        with pytest.raises(Invalid, match=r"^resume=.*cannot be read as a checkpoint"):
            resumed(tmp_path, *EVERYTHING).run()
    for whole in (3, [], {}, {"model": {}}, *({k: v for k, v in state.items() if k != gone} for gone in NEEDED)):
        torch.save(whole, path)
        with pytest.raises(Invalid, match=r"^resume=.*(lacks|is no checkpoint)"):
            resumed(tmp_path, *EVERYTHING).run()
    run = resumed(tmp_path, *EVERYTHING)
    for name in [*sorted(set(NEEDED) - {"config"}), "latest", "files"]:
        for odd in (3, "x", [], {"a": 1}, [None], 10**30):
            torch.save(state | {name: odd}, path)
            try:
                run.begin()
                run.close()
            except Invalid as error:
                assert "\n" not in str(error) and str(error).startswith("resume="), (name, odd, error)


def test_resuming_needs_nothing_of_what_the_run_began_with(tmp_path: Path) -> None:
    trainer(tmp_path / "first", *EVERYTHING, "trainer.updates=1").run()
    begins = f"init_from={tmp_path / 'first'}"
    trainer(tmp_path / "run", *EVERYTHING, "trainer.updates=3", begins).run()
    trainer(tmp_path / "whole", *EVERYTHING, "trainer.updates=6", begins).run()
    shutil.rmtree(tmp_path / "first")
    trainer(tmp_path / "run", *EVERYTHING, "trainer.updates=6", begins, f"resume={tmp_path / 'run'}").run()
    assert differences(of_the_run(load(tmp_path / "run"))["model"], of_the_run(load(tmp_path / "whole"))["model"]) == []


@pytest.mark.parametrize("after", [0, 1000])
def test_a_checkpoint_is_whole_or_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """The disk fills up while the second checkpoint is written."""
    overrides = (*EVERYTHING, "trainer.checkpoint_every=2")
    real, kept = torch.save, []

    def full_disk(state: Any, file: Any) -> None:
        if not kept:
            real(state, file)
            kept.append(None)
            return
        kept[0] = (tmp_path / "checkpoint.pt").read_bytes()
        file.write(b"x" * after)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(torch, "save", full_disk)
    with pytest.raises(OSError, match="No space left on device"):
        trainer(tmp_path, *overrides).run()
    assert (tmp_path / "checkpoint.pt").read_bytes() == kept[0]
    assert not [p.name for p in tmp_path.iterdir() if p.name.startswith(".checkpoint")]
    assert len(metrics(tmp_path)) >= 4, "what was measured is on disk"
    monkeypatch.undo()
    resumed(tmp_path, *overrides).run()
    trainer(tmp_path / "whole", *overrides).run()
    assert differences(of_the_run(load(tmp_path)), of_the_run(load(tmp_path / "whole"))) == []


def test_a_kill_while_writing_leaves_the_old_checkpoint_and_nothing_that_stays(tmp_path: Path) -> None:
    """A process that dies inside `save` cannot clean up: the next save of the resumed run does."""
    path = tmp_path / "checkpoint.pt"
    checkpoint.save(path, {"a": torch.ones(3)})
    child = os.fork()
    if not child:

        class Killed:
            def __reduce__(self) -> Any:
                os.kill(os.getpid(), signal.SIGKILL)

        checkpoint.save(path, {"a": Killed()})
        os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    assert torch.equal(checkpoint.load("resume", path)["a"], torch.ones(3))
    checkpoint.save(path, {"a": torch.zeros(3)})
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint.pt"]


LONG = (
    "expect=any",
    *EVERYTHING,
    "trainer.epochs=1000",
    "trainer.updates=100",
    "trainer.checkpoint_every=2",
    "trainer.evaluate_every=7",
)


def advanced(path: Path) -> Any:
    """Whether a checkpoint was written since this was asked first."""
    before = path.stat().st_mtime_ns if path.is_file() else 0
    return lambda: path.is_file() and path.stat().st_mtime_ns > before


@pytest.mark.slow
def test_interrupted_then_killed_then_resumed_from_the_command_line(gradlab: Commands, tmp_path: Path) -> None:
    """Ctrl-C, kill -9 and two resumptions, each at an arbitrary moment, against one uninterrupted run."""
    folder = tmp_path / "run"
    path, draw = folder / "checkpoint.pt", random.Random()
    process = gradlab.start(*LONG, f"hydra.run.dir={folder}", cwd=tmp_path, joined=True)
    wait_for(advanced(path), process)
    time.sleep(draw.uniform(0, 0.05))
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 130, said
    assert f"resume={folder}" in said and "Traceback" not in said
    state, lines = load(folder), metrics(folder)
    assert lines[-1]["attempt"] == state["update"]["attempts"], "it ended with a checkpoint of its last update"

    process = gradlab.start(f"resume={folder}", cwd=tmp_path, joined=True)
    wait_for(advanced(path), process)
    time.sleep(draw.uniform(0, 0.05))
    process.kill()
    process.communicate(timeout=120)
    update = load(folder)["update"]
    assert update["attempts"] >= 2 and update["applied"] < 100, "of the first updates some are skipped"

    process = gradlab.start(f"resume={folder}", cwd=tmp_path, joined=True)
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 0, said
    trainer(tmp_path / "whole", *LONG).run()
    assert differences(of_the_run(load(folder)), of_the_run(load(tmp_path / "whole"))) == []
    assert differences(metrics(folder), metrics(tmp_path / "whole")) == []
    assert not list(folder.glob(".checkpoint*"))
