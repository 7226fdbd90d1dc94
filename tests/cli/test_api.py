"""The commands as functions, with objects in place of names."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import gradlab
from gradlab.cli.api import Run, Sweep
from gradlab.data.order import epoch_order

SHORT = ("optimizer=sgd", "optimizer.lr=0.05", "trainer.epochs=5", "data.batch_size=8", "trainer.progress=none")


def pairs() -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(96, 8, generator=g)
    return x, x.sum(1)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """`gradlab.run` in a folder of its own."""
    folder = tmp_path_factory.mktemp("program")

    def made(*overrides: str, **objects: object) -> Run:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            return gradlab.run(*SHORT, *overrides, **objects)

    return made


def test_objects_train_as_in_a_plain_loop(run: Callable[..., Run]) -> None:
    """A copy of the model, from the weights that it has."""
    x, y = pairs()
    model, losses = nn.Linear(8, 1), []
    before = [p.clone() for p in model.parameters()]
    done = run("trainer.epochs=1", model=model, data=(x, y), loss=lambda o, t: (o[:, 0] - t) ** 2)
    assert all(map(torch.equal, before, model.parameters()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=done.record.fields["optimizer.momentum"])
    for batch in epoch_order(96, 0, 0).split(8):
        optimizer.zero_grad()
        loss = ((model(x[batch])[:, 0] - y[batch]) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert list(done.metrics["train/loss"].dropna()) == pytest.approx(losses, rel=1e-5)
    assert list(done.layers.columns) == ["weight", "bias"] and done.layers.index[0] == 1


def test_a_run_says_what_it_found_and_runs_again_with_its_objects(run: Callable[..., Run]) -> None:
    torch.manual_seed(0)
    x, y = pairs()
    ill = run("optimizer.lr=3", model=nn.Linear(8, 1), data=(x, y), loss=lambda o, t: (o[:, 0] - t) ** 2)
    assert ill.verdict == "exploding" and not ill.healthy and "norm" in ill.evidence[0] and ill.suggestions
    well = ill.again("optimizer.lr=0.01")
    assert well.healthy and well.folder != ill.folder and "optimizer.lr=0.01" in well.record.overrides
    page = well._repr_html_()
    assert page.startswith("<iframe") and "<script" not in page
    found = gradlab.load(well.folder)
    assert isinstance(found, Run) and found.verdict == well.verdict


def test_a_sweep_is_a_table_of_its_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = gradlab.multirun(*SHORT, "seed=0,1", "expect=any", model=lambda: nn.Linear(8, 1), data=pairs)
    assert list(done.results["seed"]) == [0, 1] and [one.healthy for one in done.runs] == [True, True]
    first, second = (one.metrics["train/loss"][0] for one in done.runs)
    assert first != second, "a function makes a model of each seed"
    assert isinstance(gradlab.load(done.folder), Sweep)


@pytest.mark.parametrize(
    ("overrides", "objects", "kind", "says"),
    [
        (("optimizer.lr=-1",), {}, ValueError, "optimizer.lr=-1.0: must be > 0 and finite"),
        (("optimzer=sgd",), {}, ValueError, "did you mean optimizer"),
        (("seed=0,1",), {}, ValueError, "several values need --multirun"),
        ((), {"data": (torch.rand(96, 3), torch.rand(96))}, ValueError, "shapes cannot be multiplied"),
        ((), {"model": {}.__getitem__}, ValueError, "refuses"),
        ((), {"optimizer": None}, TypeError, "optimizer: must be one of model, data, loss"),
        ((), {"model": lambda: 1 / 0}, ZeroDivisionError, "division by zero"),
    ],
)
def test_a_mistake_is_raised_in_the_words_of_the_command_and_not_printed(
    run: Callable[..., Run],
    capfd: pytest.CaptureFixture[str],
    overrides: tuple[str, ...],
    objects: dict[str, object],
    kind: type[Exception],
    says: str,
) -> None:
    with pytest.raises(kind, match=says.replace("+", r"\+").replace(".", r"\.")):
        run(*overrides, **({"model": nn.Linear(8, 1), "data": pairs()} | objects))
    assert capfd.readouterr().err == ""


def test_an_object_of_a_program_is_told_where_there_is_none(
    run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"model.target=program:model: a program gave it"):
        run("model=custom", "model.target=program:model", data=pairs())


@pytest.mark.slow
def test_a_broken_run_is_fixed(run: Callable[..., Run]) -> None:
    torch.manual_seed(1)
    ill = run("optimizer.lr=3", model=nn.Linear(8, 1), data=pairs())
    found = ill.fix()
    assert found["proven"] and ill.fix()["proven"], "given again, it is read"


def test_terms_of_a_loss_are_weighted_and_logged(run: Callable[..., Run]) -> None:
    """A name of one's own needs no plus."""

    def terms(outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"fit": (outputs[:, 0] - targets) ** 2, "size": outputs.square().mean()}

    lines = run("loss.weights={size: 0.5}", model=nn.Linear(8, 1), data=pairs(), loss=terms).metrics
    wanted = lines["train/loss/fit"] + 0.5 * lines["train/loss/size"]
    assert lines["train/loss"].dropna().tolist() == pytest.approx(wanted.dropna().tolist())
