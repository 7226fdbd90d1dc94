"""A folder from elsewhere runs nothing that it names, and is written to nowhere else, before its user says so."""

import json
import os
import shutil
from pathlib import Path

import pytest
from forked import SHORT, Commands, told

from gradlab.base.option import Invalid
from gradlab.runs import trust

NET = """
import pathlib, torch
pathlib.Path("ran").touch()
def net():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
"""
OWN = ("model=custom", "model.target=nets:net", "trainer.epochs=1", "data.samples=64", "expect=any")


@pytest.mark.parametrize(
    "override",
    [
        *("model.target=os:system", "+model.kwargs.a={target:os.system}", "seed=${oc.env:HOME}", "clip=../../tmp/x"),
        *("hydra.job_logging.handlers.x._target_=os.system", "hydra.launcher.setup=[id]", "~hydra.callbacks"),
        *("hydra/output=x",),
        *("+hydra.job.env_set.A=1", "logger=wandb", "logger.wandb.project=x", "hydra.searchpath=[file:///tmp]"),
    ],
)
def test_what_can_run_code_is_asked_about(override: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert trust.named(["clip=norm", "clip.max_norm=1", override]) == [override]
    with pytest.raises(Invalid, match="--trust"):
        trust.confirm("resume", tmp_path, [override], [], False)
    trust.mark([override], [])
    trust.confirm("resume", tmp_path, [override, "resume=x"], [], False)
    with pytest.raises(Invalid, match="--trust"):
        trust.confirm("resume", tmp_path, [override], ["conf"], False)
    trust.confirm("resume", tmp_path, [override], ["conf"], True)


def test_ones_own_folder_needs_nothing_wherever_it_is(gradlab: Commands, tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(NET)
    assert gradlab(*OWN, "hydra.run.dir=run", cwd=tmp_path).code == 0
    shutil.move(tmp_path / "run", tmp_path / "moved")
    (tmp_path / "ran").unlink()
    elsewhere = {"XDG_STATE_HOME": str(tmp_path / "another_user")}
    assert "model.target=nets:net" in told(gradlab("resume=moved", cwd=tmp_path, **elsewhere))
    assert not (tmp_path / "ran").exists() and not (tmp_path / "another_user").exists()
    assert gradlab("resume=moved", cwd=tmp_path).code == 0 and (tmp_path / "ran").exists()
    assert gradlab("resume=moved", "--trust", cwd=tmp_path, **elsewhere).code == 0
    assert gradlab("resume=moved", cwd=tmp_path, **elsewhere).code == 0, "it is this user's now"


@pytest.mark.slow
def test_every_command_that_runs_what_a_folder_names_asks(gradlab: Commands, tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(NET)
    assert gradlab(*OWN, "hydra.run.dir=moved", cwd=tmp_path).code == 0
    (tmp_path / "moved" / "crash.pt").touch()
    for module in ("gradlab.replay", "gradlab.fix"):
        if module == "gradlab.fix":
            content = json.loads((tmp_path / "moved" / "diagnosis.json").read_text()) | {"verdict": "exploding"}
            (tmp_path / "moved" / "diagnosis.json").write_text(json.dumps(content))
        nobody = {"XDG_STATE_HOME": str(tmp_path / "nobody")}
        assert "--trust" in told(gradlab.python("-m", module, "moved", cwd=tmp_path, **nobody).result()), module


def test_a_sweep_from_elsewhere_is_asked_about_too(gradlab: Commands, tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(NET)
    assert gradlab("-m", *OWN, "seed=0,1", "hydra.sweep.dir=sweep", cwd=tmp_path).code == 0
    assert gradlab("resume=sweep", cwd=tmp_path).code == 0
    assert "nets:net" in told(gradlab("resume=sweep", cwd=tmp_path, XDG_STATE_HOME=str(tmp_path / "nobody")))


def test_links_that_a_launcher_keeps_among_its_own_files_are_of_no_account(tmp_path: Path) -> None:
    for folder in (".submitit", "0"):
        (tmp_path / folder).mkdir()
    (tmp_path / "multirun.yaml").write_text("hydra: {}")
    os.symlink(tmp_path / "multirun.yaml", tmp_path / ".submitit" / ".submission_file_1.sh")
    trust.refuse_links("resume", tmp_path)
    os.symlink(tmp_path / "multirun.yaml", tmp_path / "0" / "metrics.jsonl")
    with pytest.raises(Invalid, match="symbolic link"):
        trust.refuse_links("resume", tmp_path)


def test_nothing_is_written_through_a_link(gradlab: Commands, tmp_path: Path) -> None:
    assert gradlab(*SHORT, "hydra.run.dir=run", cwd=tmp_path).code == 0
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    for name in ("metrics.jsonl", ".hydra/config.yaml"):
        path = tmp_path / "run" / name
        kept = path.read_bytes() if path.is_file() else None
        path.unlink(missing_ok=True)
        os.symlink(mine, path)
        assert "symbolic link" in told(gradlab("resume=run", cwd=tmp_path)), name
        for module in ("gradlab.advise", "gradlab.report"):
            assert "symbolic link" in told(gradlab.python("-m", module, "run", cwd=tmp_path).result()), (name, module)
        path.unlink()
        if kept is not None:
            path.write_bytes(kept)
    assert mine.read_text() == "mine"


def test_flags_in_a_folder_are_not_obeyed(gradlab: Commands, tmp_path: Path) -> None:
    assert gradlab(*SHORT, "hydra.run.dir=run", cwd=tmp_path).code == 0
    (tmp_path / "run" / ".hydra" / "overrides.yaml").write_text("- --config-dir=/tmp\n- --multirun\n")
    assert "overrides.yaml" in told(gradlab("resume=run", cwd=tmp_path))
