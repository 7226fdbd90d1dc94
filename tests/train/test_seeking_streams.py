"""Streams and loaders that know their place: a resumed run goes on there, with what it would have read."""

from pathlib import Path
from typing import Any

import pytest
import streams
import torch
from forked import Commands
from helpers import differences, load, metrics, of_the_run, trainer, weights
from test_resume import Copying, resumed
from test_streamed_data import NET, TEXT, seen

FIELDS = (*NET, "data.batch_size=4", "data.outputs=3", "+model.kwargs.dropout=0.2", "accumulation.steps=2")
FIELDS += ("trainer.epochs=2", "trainer.checkpoint_every=1", "data.batches=6")
STREAM = "data.target=streams:seeking"
TORCHDATA = "data.target=streams:torchdata_loaders"


def note(run: Any) -> str:
    (found,) = [line for line in run.data.notes if "resumed run" in line]
    return str(found)


@pytest.mark.parametrize(
    ("made", "seeks"),
    [
        ((STREAM,), True),
        ((STREAM, "+data.kwargs.wrong=forgets"), False),
        ((STREAM, "+data.kwargs.wrong=unsafe"), False),
        ((TORCHDATA,), True),
        ((TORCHDATA, "+data.kwargs.generator=true"), True),
        ((TORCHDATA, "+data.kwargs.stream=true"), True),
        ((TORCHDATA, "+data.kwargs.workers=2", "+data.kwargs.noise=0"), True),
        ((TORCHDATA, "+data.kwargs.workers=2"), False),
    ],
    ids=["stream", "forgets", "unsafe", "torchdata", "generator", "torchdata stream", "workers", "drawing workers"],
)
def test_killed_at_any_update_and_resumed_it_ends_the_same(tmp_path: Path, made: tuple[str, ...], seeks: bool) -> None:
    """However it comes to its place; what cannot seek, or not exactly, is read again."""
    if TORCHDATA in made:
        pytest.importorskip("torchdata.stateful_dataloader")
    fields = (*FIELDS, *made)
    whole = trainer(tmp_path / "whole", *fields, cls=Copying)
    assert ("goes on at its place, by the state_dict of" if seeks else "again up to its place") in note(whole)
    assert whole.run().attempts == 6
    expected, lines = of_the_run(load(tmp_path / "whole")), metrics(tmp_path / "whole")
    killed = sorted(tmp_path.glob("killed_*"))[1:]
    for folder in killed if "workers" not in str(made) else killed[1:4:2]:
        within, run = 0 < load(folder)["position"]["cursor"] < 6, resumed(folder, *fields)
        run.run()
        assert any("batches again" in line for line in run.notes) == (within and not seeks), run.notes
        assert differences(of_the_run(load(folder)), expected) == [], folder.name
        assert differences(metrics(folder), lines) == [], folder.name


def test_what_was_read_is_not_read_again(tmp_path: Path) -> None:
    trainer(tmp_path, *FIELDS, STREAM, "trainer.updates=2", "+data.kwargs.samples=24").run()
    run = resumed(tmp_path, *FIELDS, STREAM, "trainer.updates=3", "+data.kwargs.samples=24")
    stream, before = run.stream.stream, run.stream.stream.read
    run.config.trainer.evaluate_every = 0
    run.run()
    assert run.outcome.attempts == 3 and stream.read - before == 8


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (("data.target=streams:loaders", "+data.kwargs.stream=true"), "Endless has no state_dict"),
        ((STREAM, "+data.kwargs.wrong=forgets"), "after load_state_dict Seeking does not give the batch that followed"),
        ((STREAM, "+data.kwargs.wrong=unsafe"), "the state of Seeking is no plain data"),
        ((STREAM, "data.workers=1"), "Seeking has no state_dict in workers"),
    ],
)
def test_a_stream_that_cannot_seek_says_what_resuming_costs(tmp_path: Path, made: tuple[str, ...], why: str) -> None:
    trainer(tmp_path, *FIELDS, *made, "trainer.updates=2").run()
    run = resumed(tmp_path, *FIELDS, *made, "trainer.updates=3")
    assert f"again up to its place: {why}" in note(run)
    run.run()
    assert any("reads 4 batches again to come to its place" in line for line in run.notes)


def test_rows_of_hugging_face_are_as_good_as_a_list_of_them(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    fields = (*TEXT, "data.batch_size=4", "accumulation.steps=2", "trainer.epochs=2")
    made = ("sentences", "hugging_face")
    runs = [trainer(tmp_path / name, *fields, f"data.target=streams:{name}") for name in made]
    for run in runs:
        run.run()
    assert torch.equal(weights(runs[0].module), weights(runs[1].module))
    assert differences(metrics(tmp_path / made[0]), metrics(tmp_path / made[1])) == []


@pytest.mark.slow
@pytest.mark.distributed
def test_two_ranks_read_a_stream_of_hugging_face_as_one_process_does(gradlab: Commands, tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    made = ("data.target=streams:hugging_face", "+data.kwargs.streaming=true", "+data.kwargs.shuffled=true")
    fields = (*TEXT, *made, "data.batch_size=4", "data.batches=6", "trainer.epochs=3", "trainer.device=cpu")
    fields += ("expect=any", "trainer.progress=none")
    for more in (("hydra.run.dir=two", "accumulation.steps=2", "trainer.updates=4"), ("resume=two",)):
        given = (*fields, *more) if len(more) > 1 else (*more, "trainer.updates=6")
        ended = gradlab.torchrun(2, "-m", "gradlab", *given, cwd=tmp_path)
        assert ended.code == 0, ended.err
    one = trainer(tmp_path / "one", *fields, "accumulation.steps=4")
    one.run()
    found: Any = load(tmp_path / "two")["model"]
    assert one.outcome.applied == 6
    for name, p in one.module.named_parameters():
        torch.testing.assert_close(found[name], p.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_stream_of_hugging_face_is_read_in_its_order_and_resumed(tmp_path: Path, shuffled: bool) -> None:
    pytest.importorskip("datasets")
    made = ("data.target=streams:hugging_face", "+data.kwargs.streaming=true", f"+data.kwargs.shuffled={shuffled}")
    fields = (*TEXT, *made, "data.batch_size=4", "accumulation.steps=2", "trainer.epochs=2", "data.batches=6")
    fields += ("trainer.checkpoint_every=1",)
    whole = trainer(tmp_path / "whole", *fields, cls=Copying)
    assert shuffled or "goes on at its place, by the state_dict of IterableDataset" in note(whole)
    given = seen(whole)
    assert whole.run().attempts == 6
    read = [[row[row > 0].tolist() for batch in given[at : at + 6] for row in batch["input_ids"]] for at in (0, 8)]
    rows = [row["input_ids"] for row in streams.sentences()[0]]
    assert sorted(read[0]) == sorted(read[1]) == sorted(rows)
    assert (read[0] == rows) == (not shuffled) and (read[0] == read[1]) == (not shuffled)
    for folder in sorted(tmp_path.glob("killed_*"))[1:]:
        resumed(folder, *fields).run()
        assert differences(of_the_run(load(folder)), of_the_run(load(tmp_path / "whole"))) == [], folder.name
        assert differences(metrics(folder), metrics(tmp_path / "whole")) == [], folder.name
