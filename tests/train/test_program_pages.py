"""The programs of docs/programs: their verdict, and the invariants of an update for each of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import Commands
from helpers import HERE, differences, load, losses, of_the_run, trainer, weights
from program_pages import FOLDER, NAMES, STILL, overrides, parts, plain, written

from gradlab.base.json_lines import read_lines
from gradlab.runs.record import RunRecord

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of the libraries


@pytest.fixture
def here(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the program of the test's page in it."""
    name = request.node.callspec.params["name"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for command in written(name, tmp_path)[:-1]:
        subprocess.run([sys.executable, *command], cwd=tmp_path, check=True)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def test_every_program_has_a_page_of_thirty_lines_in_the_navigation() -> None:
    navigation = (FOLDER.parents[1] / "mkdocs.yml").read_text()
    for name in NAMES:
        text = (FOLDER / f"{name}.md").read_text()
        assert len(text.splitlines()) <= 30 and f"programs/{name}.md" in navigation, name
    assert len(NAMES) >= 10


@pytest.mark.parametrize("name", NAMES)
def test_it_is_healthy_and_survives_a_kill(here: Path, gradlab: Commands, name: str) -> None:
    """As its command runs it; killed by SIGKILL and resumed it ends bitwise the same."""
    command = (*overrides(name, here), "trainer.checkpoint_every=3", "trainer.progress=none")
    whole = gradlab(*command, "hydra.run.dir=whole", cwd=here, timeout=300)
    assert whole.code == 0, whole.out + whole.err
    record = RunRecord(here / "whole")
    assert record.verdict == "healthy", record.diagnosis["findings"]
    begun, lines = gradlab.start(*command, "hydra.run.dir=killed", cwd=here), here / "killed" / "metrics.jsonl"
    while not (here / "killed" / "checkpoint.pt").is_file():
        assert begun.poll(0.01) is None, begun.communicate()
    begun.kill()
    begun.wait()
    assert 0 < len(list(read_lines(lines))) < len(record.lines)
    again = gradlab("resume=killed", cwd=here, timeout=300)
    assert again.code == 0, again.out + again.err
    assert differences(of_the_run(load(here / "killed")), of_the_run(load(here / "whole"))) == []


@pytest.mark.parametrize("name", NAMES)
def test_accumulated_it_is_one_big_batch(here: Path, name: str) -> None:
    runs = []
    for i, fields in enumerate(parts(name, overrides(name, here))):
        runs.append(trainer(here / str(i), *fields))
        runs[-1].run()  # before the next is built, which seeds the generators
    assert len(losses(runs[0].folder)) == 4
    assert losses(runs[0].folder) == pytest.approx(losses(runs[1].folder), rel=1e-4)
    assert weights(runs[0].module).numpy() == pytest.approx(weights(runs[1].module).numpy(), abs=1e-5)


@pytest.mark.parametrize("name", ["mixture"])
def test_a_loss_of_a_micro_batch_as_a_whole_is_said_to_be_no_mean(here: Path, name: str) -> None:
    fields = plain(overrides(name, here))
    weights = (("+model.kwargs.router_aux_loss_coef=5.0",), STILL[name])
    found = [trainer(here / str(i), *fields, *more).loss.weighting for i, more in enumerate(weights)]
    assert "exact as far as it is" in found[0] and "exact as far as it is" not in found[1]


@pytest.fixture(scope="module")
def two(gradlab: Commands, once: Any) -> Path:
    """All programs on two ranks, in one launch."""

    def launch(folder: Path) -> None:
        for name in NAMES:
            for command in written(name, folder)[:-1]:
                subprocess.run([sys.executable, *command], cwd=folder, check=True)
        ended = gradlab.torchrun(2, str(HERE / "program_ranks.py"), cwd=folder)
        assert ended.code == 0, ended.err

    return once("program_ranks", launch)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_are_one_machine(here: Path, two: Path, name: str) -> None:
    found: list[Any] = [torch.load(two / f"{name}.{rank}.pt") for rank in range(2)]
    assert torch.equal(*found), "bitwise the same on both"
    if name == "vae":
        return  # each rank draws its own noise
    small, large = parts(name, overrides(name, here), times=2)
    alone = trainer(here / "alone", *(large if name != "speech" else (*small, "accumulation.steps=2")))
    alone.run()
    assert found[0].numpy() == pytest.approx(weights(alone.module).numpy(), abs=1e-5)


@pytest.mark.parametrize("name", ["mixture"])
def test_divided_among_ranks_it_is_one_process(here: Path, gradlab: Commands, name: str) -> None:
    """With the router's loss, which is of a micro-batch: each rank's is one of the process's two."""
    ended = gradlab.torchrun(2, str(HERE / "program_ranks.py"), name, cwd=here)
    assert ended.code == 0, ended.err
    found = torch.load(here / f"{name}.0.pt")
    small, _ = parts(name, overrides(name, here), times=2)
    runs = [[o for o in small if o not in STILL[name]], small]
    expected = []
    for how, given in zip(("alone", "without"), runs, strict=True):
        run = trainer(here / how, *given)
        run.run()
        expected.append(weights(run.module).numpy())
    ours = torch.cat([found[n].flatten() for n, _ in run.module.named_parameters()]).numpy()
    assert ours == pytest.approx(expected[0], abs=1e-6)
    assert ours != pytest.approx(expected[1], abs=1e-6), "the router's loss counts"
