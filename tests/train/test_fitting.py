"""What a model brings that does not fit its data, its batches or a checkpoint: taken where it can be, else a line."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import differences, load, of_the_run, trainer, weights
from nets import Tiny
from test_resume import Copying, resumed
from torch import Tensor, nn

from gradlab.base.distributed import World
from gradlab.base.option import Invalid
from gradlab.train import build, build_data, snapshot
from gradlab.train.unsaved_state import Unsaved, register_all

DIGITS = ("model=custom", "data=digits", "data.samples=33", "data.batch_size=16", "trainer.evaluate_every=0")


class Few(nn.Sequential):
    """A language model of too few tokens."""

    def __init__(self) -> None:
        super().__init__(nn.Embedding(100, 4), nn.Linear(4, 256))


class Maps(nn.Sequential):
    """Batch norm of maps of 6 x 6."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 10))


class Counting(Tiny):
    """Counts its passes in a buffer that is not persistent, or in an attribute, and adds the count to what it gives."""

    def __init__(self, buffer: bool = True) -> None:
        super().__init__()
        self.plain = not buffer
        self.count: Tensor | int = 0
        if buffer:
            del self.count
            self.register_buffer("count", torch.zeros(()), persistent=False)
        self.register_buffer("constant", torch.ones(5), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.count = self.count + self.training
        return super().forward(x) * (1 + 0.1 * self.count)


class Registering(Tiny):
    """Registers buffers in a forward pass in training, and multiplies with their mean; one has another shape then."""

    def __init__(self, at: int = 3, persistent: bool = True) -> None:
        super().__init__()
        self.at, self.persistent = at, persistent
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))
        self.register_buffer("none", None, persistent=persistent)
        self.register_buffer("grown", torch.ones(()), persistent=persistent)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.passes += 1
            if self.passes == self.at:
                self[1].register_buffer("mean", torch.ones(()), persistent=self.persistent)
                self.none, self.grown = torch.ones(()), torch.ones(3)
            elif self.passes > self.at:
                for buffer in (self[1].mean, self.none, self.grown):
                    buffer.mul_(0.9).add_(x.detach().mean())
        y = super().forward(x)
        return y * self[1].mean * self.none * self.grown.mean() if self.passes >= self.at else y


class Late(Tiny):
    """Registers its only buffer in its third forward pass in training, which overflows."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = [0]

    def forward(self, x: Tensor) -> Tensor:
        self.passes[0] += self.training
        if self.passes[0] == 3 and self.training:
            self.register_buffer("late", torch.ones(()))
            return super().forward(x) * float("inf")
        return super().forward(x)


def test_an_embedding_that_is_too_small_is_named(tmp_path: Path) -> None:
    text = ("data=text", "data.samples=40", "data.length=64")
    with pytest.raises(Invalid, match=r"^model=test_fitting:Few: 0 has 100 rows, too few for 1\d\d, which is among"):
        trainer(tmp_path, "model=custom", "model.target=test_fitting:Few", *text)


def test_a_remainder_of_one_map_has_statistics(tmp_path: Path) -> None:
    run = trainer(tmp_path, *DIGITS, "model.target=test_fitting:Maps", "trainer.epochs=1")
    assert run.run().attempts == 3 and run.module.training
    run.config.data.drop_last = True
    assert build_data.samples_of(run.config, run.data, World(size=2)) == 32
    with pytest.raises(Invalid, match=r"^data.drop_last=True: leaves nothing of 33 samples, in micro-batches of 48"):
        build_data.samples_of(run.config, run.data, World(size=3))


def test_a_run_begins_from_a_plain_state_dict(tmp_path: Path) -> None:
    given = Tiny()
    torch.save(given.state_dict(), tmp_path / "weights.pt")
    run = trainer(tmp_path, *DIGITS, "model.target=nets:Tiny", f"init_from={tmp_path / 'weights.pt'}")
    assert torch.equal(weights(run.module), weights(given))
    for odd in ({"epoch": 3}, {"a": torch.zeros(3)}):
        torch.save(odd, tmp_path / "weights.pt")
        with pytest.raises(Invalid, match=r"^init_from=.*(neither a state_dict|does not fit the model)"):
            trainer(tmp_path, *DIGITS, "model.target=nets:Tiny", f"init_from={tmp_path / 'weights.pt'}")


@pytest.mark.parametrize("buffer", [True, False])
def test_what_no_state_dict_holds_is_kept_or_told(tmp_path: Path, buffer: bool) -> None:
    fields = (*DIGITS, "model.target=test_fitting:Counting", f"+model.kwargs.buffer={buffer}", "trainer.epochs=2")
    said: list[str] = []
    whole = trainer(tmp_path / "whole", *fields, "trainer.checkpoint_every=1", cls=Copying)
    whole.say = said.append
    whole.run()
    assert [line for line in said if "since they are no buffers: count" in line] == said[-1:] * (not buffer)
    assert load(tmp_path / "whole")["unsaved"].keys() == ({"count"} if buffer else set())
    for folder in sorted(tmp_path.glob("killed_*"))[1:] if buffer else ():
        resumed(folder, *fields, "trainer.checkpoint_every=1").run()
        assert differences(of_the_run(load(folder)), of_the_run(load(tmp_path / "whole"))) == [], folder.name


@pytest.mark.parametrize("persistent", [True, False])
def test_buffers_that_are_registered_in_training_are_resumed(tmp_path: Path, persistent: bool) -> None:
    fields = (*DIGITS, "model.target=test_fitting:Registering", "trainer.epochs=2", "trainer.checkpoint_every=1")
    fields += (f"+model.kwargs.persistent={persistent}", "trainer.device=cpu")
    trainer(tmp_path / "whole", *fields, cls=Copying).run()
    killed = sorted(tmp_path.glob("killed_*"))
    assert len(killed) == 6
    for folder in killed[1:]:
        run = resumed(folder, *fields)
        snapshot.check_model(run, load(folder))
        run.run()
        assert differences(of_the_run(load(folder)), of_the_run(load(tmp_path / "whole"))) == [], folder.name
    if persistent:
        begun = f"init_from={tmp_path / 'whole'}"
        again = trainer(tmp_path / "again" / "whole", *fields, begun, cls=Copying)
        assert torch.equal(again.module[1].mean, load(tmp_path / "whole")["model"]["1.mean"])
        again.run()
        folder = tmp_path / "again" / "killed_3"
        trainer(folder, *fields, begun, f"resume={folder}").run()
        assert differences(of_the_run(load(folder)), of_the_run(load(tmp_path / "again" / "whole"))) == []


def test_a_buffer_that_a_skipped_update_registers_late_is_gone(tmp_path: Path) -> None:
    fields = (*DIGITS, "model.target=test_fitting:Late", "precision.nonfinite=skip", "trainer.epochs=1")
    run = trainer(tmp_path, *fields)
    run.run()
    assert run.skipped == 1 and not hasattr(run.module, "late")


def test_a_buffer_at_the_address_of_the_one_before_is_another() -> None:
    module = torch.nn.Module()
    module.register_buffer("kept", torch.zeros(3), persistent=False)
    module.seen = torch.zeros(3)
    found = Unsaved(module)
    assert not found.state() and not list(found.notes())
    for _ in range(50):  # one of them lies where the first lay
        module.kept, module.seen = None, None
        module.kept, module.seen = torch.ones(3), torch.ones(3)
        assert found.state().keys() == {"kept"}
    assert ["seen" in note for note in found.notes()] == [True] and not list(found.notes())


@pytest.mark.parametrize("begins_with_one", [True, False])
def test_buffers_that_are_registered_late_are_told_where_ddp_does_not_share_them(begins_with_one: bool) -> None:
    module = torch.nn.Module()
    if begins_with_one:
        module.register_buffer("grown", torch.zeros(()))
    found = Unsaved(module, shared=False)
    for name in ("grown", "late"):
        module.register_buffer(name, torch.zeros(3))
    notes = list(found.notes())
    assert [note.endswith("resumed on all ranks as rank 0 has them: grown, late") for note in notes] == (
        [] if begins_with_one else [True]
    )


def test_all_ranks_make_room_for_buffers_that_were_registered_in_training(tmp_path: Path) -> None:
    fields = (*DIGITS, "model.target=test_fitting:Registering", "trainer.epochs=2", "trainer.device=cpu")
    trainer(tmp_path, *fields).run()
    said: list[object] = []

    class Rank(World):
        def broadcast(self, value: object) -> object:
            said.append(value)
            return said[0]

    models = [Registering(), Registering()]
    for rank, model in enumerate(models):
        build.begin_from(str(tmp_path), model, Rank(rank, size=2))
    here, there = ([(name, b.shape, b.dtype) for name, b in model.named_buffers()] for model in models)
    assert len(here) == 4 and here == there


def test_buffers_that_were_registered_in_training_are_where_the_model_is() -> None:
    module = Tiny().to("meta")
    register_all(module, ["late"], {"late": torch.ones(3)})
    assert module.late.is_meta


def test_ranks_are_compared_without_drawing_and_also_where_rank_0_draws_its_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trainer(tmp_path, *DIGITS, "model.target=nets:Tiny")
    monkeypatch.setattr(World, "gather", lambda *_: ["", "one", "", "other"])
    batch = run.data.train.batch
    monkeypatch.setattr(run.data.train, "batch", lambda index: (random.random(), np.random.rand(), batch(index))[2])
    before = random.getstate(), np.random.get_state()[2]
    with pytest.raises(Invalid, match="on rank 3 it begins otherwise"):
        build_data.check_same(run.data, World(size=4))
    assert (random.getstate(), np.random.get_state()[2]) == before
