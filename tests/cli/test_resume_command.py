"""`resume=FOLDER` whatever state the folder is in: nothing is lost or invented, and what is refused is said."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from forked import SHORT, Commands, told
from helpers import sampled

RUN = (*SHORT, "seed=5", "optimizer.lr=0.003", "expect=any", "trainer.checkpoint_every=1")


@pytest.fixture(scope="module")
def ended(gradlab: Commands, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is complete."""
    folder = tmp_path_factory.mktemp("ended")
    result = gradlab(*RUN, "hydra.run.dir=run", cwd=folder)
    assert result.code == 0, result
    return folder / "run"


@pytest.fixture
def run(ended: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(ended, tmp_path / "run")
    return tmp_path / "run"


def diagnosis(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "diagnosis.json").read_text())
    del found["outcome"]["seconds"]
    return found


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_completed_run_is_diagnosed_as_it_was(gradlab: Commands, run: Path) -> None:
    """Also where it was killed between its last checkpoint and diagnosis.json: the last look is made again."""
    before = diagnosis(run)
    for killed in (False, True):
        if killed:
            (run / "diagnosis.json").unlink()
        assert gradlab("resume=run", cwd=run.parent).code == 0
        assert diagnosis(run) == before


@pytest.mark.parametrize("damage", sampled(["zeros", "short", "middle", "missing"], 4))
def test_lines_that_a_power_loss_took_are_a_gap(gradlab: Commands, run: Path, damage: str) -> None:
    path = run / "metrics.jsonl"
    text, whole = path.read_bytes(), lines(run)
    first = text.index(b"\n") + 1
    if damage == "missing":
        path.unlink()
        (run / "layers.jsonl").unlink()
    else:
        kept = {
            "short": text[: first + 7],
            "zeros": text[:first] + bytes(len(text) - first),
            "middle": b"\0" + text[1:],
        }
        path.write_bytes(kept[damage])
    result = gradlab("resume=run", "trainer.epochs=2", cwd=run.parent)
    assert result.code == 0 and "metrics.jsonl: " in result.err and "gap" in result.err, result
    assert b"\0" not in path.read_bytes()
    found = lines(run)
    left = {"short": 1, "zeros": 1, "middle": len(whole) - 1, "missing": 0}[damage]
    assert [line["attempt"] for line in found if "train/loss" in line][-2:] == [3, 4] and len(found) == left + 3
    assert "names" in json.loads((run / "layers.jsonl").read_text().splitlines()[0])
    assert gradlab("resume=run", "trainer.epochs=2", cwd=run.parent).code == 0


MODEL = "".join(f"- {o}\n" for o in RUN if o.startswith(("model", "data", "trainer")))


@pytest.mark.parametrize("text", sampled([MODEL, "", "- 'optimizer.lr=0.5'\n", "[}", "a: b\n", "- 3\n- [1]\n"], 3))
def test_a_changed_record_of_what_was_typed_is_no_other_run(gradlab: Commands, run: Path, text: str) -> None:
    """The checkpoint knows its configuration: what differs must be typed now, or nothing is run or changed."""
    (run / ".hydra" / "overrides.yaml").write_text(text)
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file() and p.name != "gradlab.log"}
    assert "resume" in told(gradlab("resume=run", cwd=run.parent))
    assert before == {p: p.read_bytes() for p in before}
    (run / "checkpoint.pt").unlink()
    (run / "diagnosis.json").unlink()
    assert "resume" in told(gradlab("resume=run", cwd=run.parent))


@pytest.mark.slow
def test_what_is_typed_now_may_differ(gradlab: Commands, run: Path) -> None:
    assert gradlab("resume=run", "clip=norm", "optimizer.lr=0.01", "trainer.epochs=2", cwd=run.parent).code == 0
    assert gradlab("resume=run", cwd=run.parent).code == 0
    assert lines(run)[-2]["lr"] == 0.01


def test_a_run_killed_before_its_first_checkpoint_begins_anew(gradlab: Commands, run: Path) -> None:
    whole, before = lines(run), diagnosis(run)
    (run / "checkpoint.pt").unlink()
    assert "holds no checkpoint.pt" in told(gradlab("resume=run", cwd=run.parent)), "its diagnosis is not overwritten"
    (run / "diagnosis.json").unlink()
    (run / "metrics.jsonl").write_text('{"attempt": 7}\n{"att')
    (run / ".hydra" / "hydra.yaml").write_text("")  # the kill was of a resumption, while Hydra wrote it anew
    result = gradlab("resume=run", cwd=run.parent)
    assert result.code == 0 and "begins anew" in result.err, result
    assert [line["attempt"] for line in lines(run)] == [line["attempt"] for line in whole]
    assert diagnosis(run)["measured"] == before["measured"]
