"""Data that is read anew in every epoch: the invariants of an update hold, and what is wrong is said in a line.

That ranks are one machine, larger, is a case of ranks.py.
"""

import pickle
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import differences, load, losses, metrics, of_the_run, trainer, weights
from test_resume import Copying, resumed

from gradlab.base.option import Invalid
from gradlab.data.stream import DataStream, some
from gradlab.update.model_loss import ModelLoss

NET = ("model=custom", "model.target=streams:Net", "optimizer=sgd", "data=custom", "data.target=streams:augmented")
TEXT = (
    *("model=custom", "model.target=streams:Tagger", "optimizer=sgd", "data=custom", "data.target=streams:sentences"),
    *("data.collate=streams:padded", "loss=cross_entropy"),
)


def seen(run: Any) -> list[Any]:
    """What the model of a run gets, call by call."""
    found: list[Any] = []
    run.module.register_forward_pre_hook(lambda m, args, kwargs: found.append(kwargs or args[0]), with_kwargs=True)
    return found


def test_augmentation_is_drawn_anew_in_each_epoch_and_evaluation_never(tmp_path: Path) -> None:
    said: list[str] = []
    run = trainer(tmp_path, *NET, "data.batch_size=22", "trainer.epochs=2")
    run.say = said.append
    given = seen(run)
    run.run()
    first, again = (given[i][run.order(i // 2).argsort()] for i in (0, 2))  # an evaluation follows each epoch
    assert isinstance(run.data.train, DataStream) and first.shape == again.shape == (22, 6)
    assert (first != again).any(1).all(), "every sample is another one"
    assert torch.equal(given[1], given[3]), "the test set is the same"
    assert any("read anew in every epoch, since two readings of a sample differ" in line for line in said)


def test_a_set_that_does_not_change_stays_on_the_device_unless_asked(tmp_path: Path) -> None:
    still = (*NET, "+data.kwargs.noise=0", "data.batch_size=4", "accumulation.steps=3", "trainer.epochs=2")
    runs = [trainer(tmp_path / str(i), *still, *more) for i, more in enumerate([(), ("data.stream=true",)])]
    for run in runs:
        run.run()
    assert not isinstance(runs[0].data.train, DataStream) and isinstance(runs[1].data.train, DataStream)
    assert torch.equal(weights(runs[0].module), weights(runs[1].module)), "the same run, bit by bit"


@pytest.mark.parametrize(
    "loss",
    [
        (),
        ("loss=custom", "loss.target=streams:own"),
        ("loss=custom", "loss.target=streams:elements", "loss.counts=streams:counted"),
    ],
    ids=["cross_entropy", "custom", "elements"],
)
def test_accumulated_dictionaries_of_unequal_lengths_are_one_big_batch(tmp_path: Path, loss: tuple[str, ...]) -> None:
    parts = [
        trainer(tmp_path / str(size), *TEXT, *loss, f"data.batch_size={size}", f"accumulation.steps={steps}")
        for size, steps in ((22, 1), (4, 6), (3, 8))
    ]
    for run in parts:
        run.run()
    for run in parts[1:]:
        assert losses(run.folder) == pytest.approx(losses(parts[0].folder), rel=1e-5)
        assert torch.allclose(weights(run.module), weights(parts[0].module), atol=1e-6)


@pytest.mark.parametrize("workers", [0, 2])
def test_killed_at_any_update_and_resumed_it_ends_the_same(tmp_path: Path, workers: int) -> None:
    overrides = (*NET, "+model.kwargs.dropout=0.2", "data.batch_size=4", "accumulation.steps=2", "trainer.epochs=2")
    overrides += ("trainer.checkpoint_every=1", f"data.workers={workers}", "data.stream=true")
    whole = trainer(tmp_path / "whole", *overrides, cls=Copying)
    assert whole.run().attempts == 6
    expected, lines = of_the_run(load(tmp_path / "whole")), metrics(tmp_path / "whole")
    for folder in sorted(tmp_path.glob("killed_*"))[slice(1, None) if not workers else slice(2, 3)]:
        torch.randn(3)  # whatever the generators were at
        resumed(folder, *overrides).run()
        assert differences(of_the_run(load(folder)), expected) == [], folder.name
        assert differences(metrics(folder), lines) == [], folder.name


def test_samples_of_like_lengths_are_together_and_each_is_read_once(tmp_path: Path) -> None:
    runs = [
        trainer(tmp_path / str(i), *TEXT, "data.batch_size=4", "trainer.epochs=2", *more)
        for i, more in enumerate([(), ("data.lengths=streams:lengths",)])
    ]
    padding = []
    for run in runs:
        given = seen(run)
        run.run()
        trained = [x["attention_mask"] for x in given[:6]]
        assert [len(mask) for mask in trained] == [4, 4, 4, 4, 4, 2]
        padding.append(sum(int((mask == 0).sum()) for mask in trained))
        assert sorted(run.order(0).tolist()) == sorted(run.order(1).tolist()) == list(range(22))
        assert run.order(0).tolist() != run.order(1).tolist()
    assert padding[1] < padding[0] / 2


def test_workers_read_what_the_run_itself_reads(tmp_path: Path) -> None:
    same = (*NET, "+model.kwargs.dropout=0.2", "data.batch_size=4", "trainer.epochs=2")
    for workers in (0, 2):
        trainer(tmp_path / str(workers), *same, f"data.workers={workers}").run()
    assert differences(of_the_run(load(tmp_path / "0")), of_the_run(load(tmp_path / "2"))) == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (("+data.kwargs.wrong=raises",), r"^data.target=streams:augmented: sample 17 raises KeyError: 'no such file'$"),
        (
            ("+data.kwargs.wrong=dies", "data.workers=1"),
            r"^data.workers=1: a worker that reads streams:augmented died, await",
        ),
        (
            ("+data.kwargs.wrong=class",),
            r"^data.target=streams:augmented: a target of the samples \[.*17.*is .*3 outputs$",
        ),
        (
            ("data.collate=streams:padded",),
            r"^data.target=streams:augmented: collating the samples 0, 1 raises TypeError",
        ),
        (
            ("data.target=streams:sentences",),
            r"raises RuntimeError: stack expects .*: data.collate=padded fills them up",
        ),
        (
            ("data.target=streams:uneven", "data.stream=true"),
            r"^data.target=streams:uneven: inputs and targets have unequal numbers of rows: \(22, 6\) and \(20,\)$",
        ),
        (
            ("data.target=streams:splits",),
            r"^data.target=streams:splits: returns train, test: must return the training",
        ),
        (
            ("data.target=streams:texts", "data.collate=padded"),
            r"^model=.*: fails on inputs without a tensor, {'text': \[",
        ),
        (("data.stream=false", "data.workers=2"), r"^data.stream=False: cannot be given together with workers"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(tmp_path: Path, fields: tuple[str, ...], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        trainer(tmp_path, *NET, "data.batch_size=4", *fields).run()


@pytest.mark.parametrize("error", [ConnectionResetError(104, "Connection reset by peer"), EOFError()], ids=repr)
def test_a_batch_that_is_lost_with_its_worker_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Which of its ends is seen first, that of the worker or of what it sends, is chance."""

    def lost(loader: Any) -> Any:
        raise error

    run = trainer(tmp_path, *NET, "data.workers=1", "data.batch_size=4")
    monkeypatch.setattr(torch.utils.data.DataLoader, "__iter__", lost)
    with pytest.raises(Invalid, match=rf"^data.workers=1: a worker that .* the first samples: {type(error).__name__}"):
        run.run()


@pytest.mark.parametrize(("shifted", "counts"), [(False, "labels"), (True, "next_labels")])
def test_a_loss_of_the_models_own_is_exact_under_accumulation(tmp_path: Path, shifted: bool, counts: str) -> None:
    """What its mean counts is measured; a micro-batch that counts nothing adds nothing, and no NaN."""
    fields = (*TEXT, "loss=model", f"+model.kwargs.shifted={shifted}", "trainer.epochs=2")
    runs = [
        trainer(tmp_path / str(size), *fields, f"data.batch_size={size}", f"accumulation.steps={steps}")
        for size, steps in ((22, 1), (1, 22))
    ]
    for run in runs:
        run.run()
        assert isinstance(run.loss, ModelLoss) and run.loss.counts == counts and run.loss.exact
    assert losses(tmp_path / "1") == pytest.approx(losses(tmp_path / "22"), rel=1e-5)
    assert torch.allclose(weights(runs[1].module), weights(runs[0].module), atol=1e-6)


def test_tokens_in_a_file_are_read_as_windows_of_it(tmp_path: Path) -> None:
    tokens = (np.arange(101) * 7 % 50).astype("uint16")
    tokens.tofile(tmp_path / "train.bin")
    np.save(tmp_path / "val.npy", tokens[:31])
    files = (f"data.path={tmp_path}/train.bin", f"data.test_path={tmp_path}/val.npy", "data.vocabulary=50")
    model = ("model=transformer", "model.layers=1", "model.width=16", "trainer.epochs=1")
    run = trainer(tmp_path / "run", *model, "data=tokens", *files, "data.length=10", "data.batch_size=4")
    run.run()
    x, y = run.data.train.batch(torch.tensor([0, 9]))
    assert x.tolist() == [tokens[:10].tolist(), tokens[90:100].tolist()] and y[1].tolist() == tokens[91:101].tolist()
    assert len(run.data.train) == 10 and run.data.test is not None and len(run.data.test) == 3
    with pytest.raises(Invalid, match=r"a target of the samples .* is 49, but the model has 40 outputs"):
        trainer(
            tmp_path / "few", *model, "data=tokens", *files, "data.length=10", "data.batch_size=4", "data.vocabulary=40"
        ).run()


def test_files_of_tokens_in_a_folder_are_one(tmp_path: Path) -> None:
    """Whatever their types and sizes: windows go over the ends of files, as of one file."""
    tokens, cuts = (np.arange(101) * 7 % 50).astype("uint16"), [0, 3, 40, 41, 95, 101]
    tokens.tofile(tmp_path / "whole.bin")
    for number, (a, b) in enumerate(pairwise(cuts)):
        np.save(tmp_path / f"shard_{number}.npy", tokens[a:b].astype("uint16" if number % 2 else "int64"))
    fields = ("model=transformer", "model.layers=1", "model.width=16", "trainer.epochs=1", "data=tokens")
    fields += ("data.vocabulary=50", "data.length=10", "data.batch_size=4")
    runs = [
        trainer(tmp_path / name, *fields, f"data.path={tmp_path}/{path}", f"data.workers={workers}")
        for name, path, workers in (("a", "whole.bin", 0), ("b", "shard_*.npy", 0), ("c", "shard_*.npy", 1))
    ]
    for run in runs:
        run.run()
        assert len(run.data.train) == 10
        assert torch.equal(weights(run.module), weights(runs[0].module))
    assert pickle.loads(pickle.dumps(runs[1].data.train.reader.dataset.tokens))[0:101].tolist() == tokens.tolist()
    with pytest.raises(Invalid, match=r"^data.path=.*none\*.bin: must be the name of a file, or a pattern of some"):
        trainer(tmp_path, *fields, f"data.path={tmp_path}/none*.bin")


@pytest.mark.parametrize("stream", [False, True])
def test_a_loader_is_read_in_its_own_order_and_resumed_at_its_place(tmp_path: Path, stream: bool) -> None:
    made = ("data.target=streams:loaders", f"+data.kwargs.stream={stream}", "data.batch_size=4", "data.batches=6")
    fields = (*NET, *made, "+model.kwargs.dropout=0.2", "accumulation.steps=4", "trainer.epochs=2")
    fields += ("trainer.checkpoint_every=1", "data.outputs=3")
    whole = trainer(tmp_path / "whole", *fields, cls=Copying)
    given = seen(whole)
    assert whole.run().attempts == 4
    trained = [x for x in given if len(x) in (4, 2)]
    assert {len(x) for x in trained[:6]} == {4, 2} and whole.data.test is not None
    assert not torch.equal(trained[0], trained[6]), "another order in another epoch"
    expected, lines = of_the_run(load(tmp_path / "whole")), metrics(tmp_path / "whole")
    for folder in sorted(tmp_path.glob("killed_*"))[1:]:
        resumed(folder, *fields).run()
        assert differences(of_the_run(load(folder)), expected) == [], folder.name
        assert differences(metrics(folder), lines) == [], folder.name


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (("+data.kwargs.stream=true",), r"^data.batches=None: must be given: Endless does not know how many"),
        (("data.batches=9",), r"^data.batches=9: batches of an epoch were expected, but streams:loaders ended before"),
        (("data.workers=1",), r"^data.workers=1: and data.collate are of no use for a DataLoader"),
        (("accumulation=target",), r"^accumulation=target: not with a loader"),
        *(
            (
                (
                    "data.lengths=streams:lengths",
                    "data.max_tokens=16",
                    f"+data.kwargs.stream={stream}",
                    "data.batches=5",
                ),
                r"^data.lengths=streams:lengths: not with a loader or a stream, whose samples have no places$",
            )
            for stream in ("true", "false")
        ),
    ],
)
def test_what_does_not_fit_a_loader_is_said_in_a_line(tmp_path: Path, fields: tuple[str, ...], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        trainer(tmp_path, *NET, "data.target=streams:loaders", "data.outputs=3", *fields).run()


BUDGET = (*TEXT, "data.lengths=streams:lengths", "data.max_tokens=16")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ((*NET, "data.target=streams:loaders", "data.outputs=3"), "now made of 1 of the data's batches and not 2"),
        (BUDGET, "now made of 1 of the data's batches and not 2"),
        ((*NET, "data.batch_size=4"), "now 4 samples and not 8: see data.batch_size"),
    ],
    ids=["loader", "max_tokens", "samples"],
)
def test_a_micro_batch_of_other_ranks_is_said_in_what_the_data_counts(
    tmp_path: Path, fields: tuple[str, ...], said: str
) -> None:
    trainer(tmp_path, *fields, "trainer.updates=1").run()
    state = load(tmp_path)
    torch.save(state | {"random": state["random"] * 2}, tmp_path / "checkpoint.pt")
    run = resumed(tmp_path, *fields, "trainer.updates=1")
    run.run()
    assert any(note.endswith(said) for note in run.notes), run.notes


def test_a_budget_of_tokens_makes_batches_of_each_sample_once(tmp_path: Path) -> None:
    run, given = trainer(tmp_path / "run", *BUDGET, "accumulation.steps=99", "trainer.epochs=2"), list[Any]()
    run.module.register_forward_pre_hook(lambda m, args, kwargs: given.append(kwargs["input_ids"]), with_kwargs=True)
    run.run()
    masks = given[: len(run.data.train)]
    assert all(mask.numel() <= 16 for mask in masks) and sum(len(mask) for mask in masks) == 22
    assert sum(int((mask == 0).sum()) for mask in masks) < 10 and len({len(mask) for mask in masks}) > 2
    assert [len(mask) for mask in masks] != [len(mask) for mask in given[len(masks) + 2 :][: len(masks)]]
    whole = trainer(tmp_path / "whole", *TEXT, "data.batch_size=22", "trainer.epochs=2")
    whole.run()
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "whole"), rel=1e-5)
    assert torch.allclose(weights(run.module), weights(whole.module), atol=1e-6)


def test_what_is_judged_by_some_batches_of_a_budget_is_not_judged_by_the_shortest(tmp_path: Path) -> None:
    train = trainer(tmp_path, *BUDGET, "data.max_tokens=8").data.train
    longest = [batch[0]["input_ids"].shape[1] for batch in some(train)]
    assert len(longest) == 4 and max(longest) > max(x["input_ids"].shape[1] for x, _ in islice(train.epoch(0, 1, 1), 4))
    assert longest == [batch[0]["input_ids"].shape[1] for batch in some(train)], "always the same"


@pytest.mark.parametrize(
    "fields",
    [
        (*BUDGET, "accumulation.steps=2", "data.workers=1"),
        (*NET, "data.batch_size=11", "schedule=plateau", "schedule.patience=0", "schedule.threshold=0.5"),
    ],
    ids=["max_tokens", "plateau"],
)
def test_killed_and_resumed_budgets_and_plateaus_end_the_same(tmp_path: Path, fields: tuple[str, ...]) -> None:
    fields = (*fields, "trainer.epochs=4", "trainer.checkpoint_every=1")
    trainer(tmp_path / "whole", *fields, cls=Copying).run()
    if "plateau" in str(fields):
        assert metrics(tmp_path / "whole")[-2]["lr"] == pytest.approx(0.1 * 0.1**2)
    for folder in sorted(tmp_path.glob("killed_*"))[1::4]:
        resumed(folder, *fields).run()
        assert differences(of_the_run(load(folder)), of_the_run(load(tmp_path / "whole"))) == [], folder.name
        assert differences(metrics(folder), metrics(tmp_path / "whole")) == [], folder.name


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((*TEXT, "data.max_tokens=16"), r"^data.max_tokens=16: needs data.lengths$"),
        ((*BUDGET, "data.max_tokens=6"), r"^data.max_tokens=6: is less than the longest sample: sample \d+ has 8$"),
        (
            (*BUDGET, "data.lengths=streams:halves", "data.max_tokens=8"),
            r"^data.max_tokens=8: is less than the longest sample: sample \d+ has 8.5$",
        ),
        ((*BUDGET, "data.lengths=streams:NUMBER"), r"^data.lengths=streams:NUMBER: must name a function, but is int$"),
        ((*BUDGET, "data.without=[1]"), r"^data.max_tokens=16: cannot be given together with without$"),
        ((*BUDGET, "accumulation=target"), r"^accumulation=target: not with a loader or max_tokens"),
        ((*NET, "schedule=plateau", "trainer.evaluate_every=0"), r"^schedule=plateau: follows the evaluation, but the"),
    ],
)
def test_budgets_and_plateaus_that_do_not_fit(tmp_path: Path, fields: tuple[str, ...], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        trainer(tmp_path, *fields, "data.batch_size=4").run()


PLATEAU = ("schedule=plateau", "schedule.metric=eval/kl")


@pytest.mark.parametrize(
    ("fields", "known"),
    [
        (NET, "eval/loss, eval/accuracy"),
        ((*TEXT, "loss=custom", "loss.target=streams:pair"), "eval/loss"),
        ((*TEXT, "loss=custom", "loss.target=streams:terms"), "eval/loss(, eval/loss/[a-z]+){4}"),
    ],
)
def test_a_metric_that_the_evaluation_does_not_have_is_refused_at_once(
    tmp_path: Path, fields: tuple[str, ...], known: str
) -> None:
    with pytest.raises(Invalid, match=rf"^schedule.metric=eval/kl: is not measured here; there are {known}$"):
        trainer(tmp_path, *fields, "data.batch_size=11", *PLATEAU)


@pytest.mark.parametrize("loss", ["pair", "terms"])
def test_every_metric_that_is_said_to_be_there_is_evaluated(tmp_path: Path, loss: str) -> None:
    fields = (*TEXT, "loss=custom", f"loss.target=streams:{loss}", "data.batch_size=11")
    with pytest.raises(Invalid) as error:
        trainer(tmp_path, *fields, *PLATEAU)
    run = trainer(tmp_path, *fields)
    run.run()
    said = str(error.value).partition("there are ")[2].split(", ")
    assert said == [name for name in run.outcome.eval[0] if name.startswith("eval/")]


def test_a_loss_of_the_models_own_is_exact_where_labels_are_the_tokens(tmp_path: Path) -> None:
    run = trainer(tmp_path, *TEXT, "data.target=streams:copied", "loss=model", "data.batch_size=4", "trainer.updates=1")
    run.run()
    assert isinstance(run.loss, ModelLoss) and run.loss.counts == "labels" and run.loss.exact


def test_a_loss_of_ones_own_gets_a_whole_batch_whose_target_is_a_number(tmp_path: Path) -> None:
    own = ("data.target=streams:rated", "loss=custom", "loss.target=streams:distance")
    runs = [
        trainer(tmp_path / str(size), *NET, "model.target=streams:Rater", *own, f"data.batch_size={size}", *more)
        for size, more in ((22, ()), (4, ("accumulation.steps=6",)))
    ]
    for run in runs:
        run.run()
    assert losses(tmp_path / "4") == pytest.approx(losses(tmp_path / "22"), rel=1e-5)


def test_classes_of_pixels_are_learnt_in_memory_and_streamed(tmp_path: Path) -> None:
    pixels = (
        "model=custom",
        "model.target=streams:pixel_net",
        "optimizer=sgd",
        "data=custom",
        "data.target=streams:pixels",
    )
    runs = [
        trainer(tmp_path / str(i), *pixels, "data.batch_size=4", "trainer.epochs=2", *more)
        for i, more in enumerate([(), ("data.stream=true",), ("data.stream=true", "accumulation.steps=2")])
    ]
    for run in runs:
        run.run()
        assert 0 < run.outcome.eval[-1]["eval/accuracy"] < 1
        assert losses(run.folder)[-1] < losses(run.folder)[0]
    assert torch.equal(weights(runs[0].module), weights(runs[1].module))
