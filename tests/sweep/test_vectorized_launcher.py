"""hydra/launcher=vectorized beside Hydra's own launcher: files, messages, exit codes; and how it is ended."""

import csv
import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
from forked import Commands, Result
from helpers import HERE, children, gone, wait_for
from test_vectorized_jobs import Left, same_states

from gradlab.cli.replay import main as replay

SMALL = ("data.samples=400", "data.test_samples=50", "model.width=16", "data.length=20", "trainer.epochs=2")
EXPLODING = ("+experiment=exploding", "model.gain=1.5", "optimizer.momentum=0.9", "clip=norm", "expect=any", *SMALL)


def both(gradlab: Commands, folder: Path, *arguments: str) -> tuple[Result, Result]:
    """The same sweep by Hydra's launcher and as lanes, in folder/basic and folder/vectorized."""
    shutil.copy(HERE / "nets.py", folder)
    results = []
    for name in ("basic", "vectorized"):
        typed = ("-m", *arguments, f"hydra/launcher={name}", f"hydra.sweep.dir={name}")
        results.append(gradlab(*typed, cwd=folder, timeout=200))
    return results[0], results[1]


def files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if "__pycache__" not in str(p))


def rows(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "results.csv").read_text().splitlines(True)))


def without_launcher(text: str) -> list[str]:
    """hydra.yaml without what differs between the launchers."""
    text = text.replace("vectorized", "basic").replace("hydra_plugins.gradlab_launchers.basic.Vectorized", "X")
    own = ("workers:", "lanes:", "memory:", "_target_: X", "_target_: hydra._internal.core_plugins.basic_launcher")
    return [line for line in text.splitlines() if not line.strip().startswith(own)]


@pytest.mark.slow
def test_a_sweep_leaves_what_hydras_launcher_leaves(gradlab: Commands, tmp_path: Path) -> None:
    """Jobs of two seeds, some of which explode: files, results and verdicts; each can be replayed and resumed."""
    grid = ("optimizer.lr=0.01,100", "clip.max_norm=1e9", "seed=0,1")
    alone, lanes = both(gradlab, tmp_path, *EXPLODING, *grid)
    assert (alone.code, lanes.code) == (0, 0), lanes.err
    assert "4 jobs as lanes of 1 program, 0 one by one" in lanes.out
    basic, vectorized = tmp_path / "basic", tmp_path / "vectorized"
    assert files(vectorized) == files(basic)
    for job in range(4):
        mine, its = vectorized / str(job), basic / str(job)
        for name in ("config.yaml", "overrides.yaml"):
            assert (mine / ".hydra" / name).read_text() == (its / ".hydra" / name).read_text()
        texts = [without_launcher((f / ".hydra" / "hydra.yaml").read_text()) for f in (mine, its)]
        assert texts[0] == texts[1]
        same_states(Left(mine), Left(its))
    for mine, its in zip(rows(vectorized), rows(basic), strict=True):
        assert mine.keys() == its.keys()
        assert (mine["verdict"], mine["overrides"], mine["exit_code"]) == (
            its["verdict"],
            its["overrides"],
            its["exit_code"],
        )
    verdicts = [row["verdict"] for row in rows(vectorized)]
    assert verdicts[0] != "exploding" and verdicts[2] == verdicts[3] == "exploding"
    assert replay([str(vectorized / "2")]) == 0 == replay([str(basic / "2")])
    told = [json.loads((f / "2" / "replay.json").read_text()) for f in (vectorized, basic)]
    assert told[0]["attempt"] == told[1]["attempt"] and told[0]["first"]["module"] == told[1]["first"]["module"]
    again = gradlab("resume=vectorized/0", "trainer.epochs=3", cwd=tmp_path)
    assert again.code == 0, again.err
    assert Left(vectorized / "0").diagnosis["outcome"]["epochs_completed"] == 3


@pytest.mark.slow
def test_jobs_that_are_refused_are_refused_as_by_hydras_launcher(gradlab: Commands, tmp_path: Path) -> None:
    """As they are planned (lr), as they begin (init_from); the others run."""
    base = ("model=sigmoid_mlp", "data.batch_size=64", "expect=any", "trainer.updates=3", "trainer.epochs=1")
    grid = ("init_from=null,nowhere.pt", "optimizer.lr=0.1,-1")
    alone, lanes = both(gradlab, tmp_path, *base, *grid)
    assert alone.code == lanes.code == 2
    kinds = [(row["verdict"], row["exit_code"]) for row in rows(tmp_path / "vectorized")]
    assert kinds == [(row["verdict"], row["exit_code"]) for row in rows(tmp_path / "basic")]
    assert [code for _, code in kinds] == ["0", "2", "2", "2"]
    for job in range(4):
        mine, its = (Left(tmp_path / name / str(job)) for name in ("vectorized", "basic"))
        assert mine.files == its.files
        if job >= 1:
            assert mine.diagnosis == its.diagnosis
    assert "init_from=nowhere.pt: no such file" in lanes.err and "optimizer.lr=-1.0: must be > 0" in lanes.err
    assert "Traceback" not in lanes.err


@pytest.mark.slow
def test_what_cannot_be_lanes_is_run_one_by_one_and_counted(gradlab: Commands, tmp_path: Path) -> None:
    models = "model.target=nets:Tiny,nets:Branching,nets:quits"
    base = ("model=custom", "data=digits", "data.batch_size=64", "expect=any", "trainer.updates=3", "trainer.epochs=1")
    alone, lanes = both(gradlab, tmp_path, *base, models, "optimizer.lr=0.1,0.01")
    assert alone.code == lanes.code == 1
    says = re.search(r"run one by one: (.*)", lanes.out)
    assert says and "2 (model=Branching: cannot be trained under vmap" in says[1] and "2 (SystemExit" in says[1]
    assert "2 jobs as lanes of 1 program, 4 one by one" in lanes.out
    assert lanes.err.count("called sys.exit(3)") == alone.err.count("called sys.exit(3)") == 2
    assert files(tmp_path / "vectorized") == files(tmp_path / "basic")
    mine, its = (
        [(r["verdict"], r["eval/loss"][:5], r["exit_code"]) for r in rows(tmp_path / name)]
        for name in ("vectorized", "basic")
    )
    assert mine == its


@pytest.mark.slow
def test_remedies_are_compared_as_by_hydras_launcher(gradlab: Commands, tmp_path: Path) -> None:
    """Lane values, another model, and one that does not apply."""
    remedies = "+remedy=none,clip_norm,lower_lr,gated,batch_norm"
    alone, lanes = both(gradlab, tmp_path, "+experiment=exploding", *SMALL, "optimizer.lr=3", remedies, "seed=0,1")
    assert alone.code == lanes.code, lanes.err
    assert files(tmp_path / "vectorized") == files(tmp_path / "basic")
    for job in range(10):
        mine, its = (Left(tmp_path / name / str(job)).diagnosis for name in ("vectorized", "basic"))
        assert (mine["verdict"], mine["remedy"], mine["exit_code"]) == (its["verdict"], its["remedy"], its["exit_code"])
        texts = [(tmp_path / n / str(job) / ".hydra" / "config.yaml").read_text() for n in ("vectorized", "basic")]
        assert texts[0] == texts[1]
    words = [
        re.findall(r"^ *(\S+) .*(cured|helped|no effect|worse|does not apply)", r.out, re.M) for r in (lanes, alone)
    ]
    assert words[0] == words[1] and len(words[0]) >= 4


@pytest.mark.slow
def test_lanes_begin_with_pretrained_weights_of_their_seed(gradlab: Commands, tmp_path: Path) -> None:
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    small = "# @package _global_\nmodel: {layers: 1}\ntrainer: {updates: 40}\noptimizer: {lr: 0.01}\n"
    (tmp_path / "conf" / "experiment" / "before.yaml").write_text(small)
    typed = (
        "--config-dir=conf",
        "pretrain=before",
        "model.layers=1",
        "expect=any",
        "trainer.updates=3",
        "trainer.epochs=1",
    )
    alone, lanes = both(gradlab, tmp_path, *typed, "optimizer.lr=0.001,0.01", "seed=0,1")
    assert alone.code == lanes.code == 0, lanes.err
    assert "4 jobs as lanes of 1 program" in lanes.out
    assert len(list((tmp_path / "outputs" / "pretrained").glob("before-*/checkpoint.pt"))) == 2
    before = []
    for job in range(4):
        mine, its = (Left(tmp_path / name / str(job)) for name in ("vectorized", "basic"))
        evals = [left.diagnosis["outcome"]["eval"] for left in (mine, its)]
        assert [e["eval/loss"] for e in evals[0]] == pytest.approx([e["eval/loss"] for e in evals[1]], rel=1e-4)
        assert evals[0][0]["eval/accuracy"] > 0.3  # it has been trained
        before.append(evals[0][0]["eval/loss"])
    assert before[0] == pytest.approx(before[2]) and before[0] != pytest.approx(before[1], rel=1e-3)


def test_a_typing_error_is_told_as_by_hydras_launcher(gradlab: Commands, tmp_path: Path) -> None:
    alone, lanes = both(gradlab, tmp_path, "optimizer.lr=0.1,abc")
    assert (lanes.code, lanes.err) == (alone.code, alone.err) and lanes.code == 2
    assert not (tmp_path / "vectorized").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "programs"),
    [(("hydra.launcher.workers=0",), 1), (("hydra.launcher.workers=3", "hydra.launcher.lanes=1"), 1)],
    ids=["in this process", "one lane each"],
)
def test_however_jobs_are_shared_out_they_are_the_same(
    gradlab: Commands, tmp_path: Path, settings: tuple[str, ...], programs: int
) -> None:
    base = ("-m", "model=sigmoid_mlp", "data.batch_size=64", "expect=any", "trainer.updates=5", "trainer.epochs=1")
    lanes = ("optimizer.lr=0.1,0.01", "seed=0,1", "hydra/launcher=vectorized")
    results = []
    for name, more in (("usual", ()), ("other", settings)):
        result = gradlab(*base, *lanes, *more, f"hydra.sweep.dir={name}", cwd=tmp_path)
        assert result.code == 0 and f"4 jobs as lanes of {programs} program" in result.out, result.err
        results.append([float(row["eval/loss"]) for row in rows(tmp_path / name)])
    assert results[0] == pytest.approx(results[1], rel=1e-4)


def test_under_torchrun_it_is_refused_in_a_line(gradlab: Commands, tmp_path: Path) -> None:
    result = gradlab(
        "-m", "seed=0,1", "hydra/launcher=vectorized", cwd=tmp_path, RANK="0", WORLD_SIZE="1", LOCAL_RANK="0"
    )
    assert result.code == 2 and "not under torchrun" in result.err and "Traceback" not in result.err


# Ended from outside

LONG = ("model=sigmoid_mlp", "data.batch_size=16", "expect=any", "trainer.epochs=100000", "monitor.every=1000")
SWEEP = ("-m", *LONG, "optimizer.lr=0.001,0.01", "seed=0,1", "hydra/launcher=vectorized", "hydra.sweep.dir=sweep")


def begun(folder: Path, jobs: int) -> bool:
    """Whether so many jobs have begun to train."""
    return len(list(folder.glob("sweep/*/metrics.jsonl"))) >= jobs


@pytest.mark.slow
def test_a_process_that_is_killed_loses_its_jobs_and_no_others(gradlab: Commands, tmp_path: Path) -> None:
    """Of two chunks that run at once; the other ends well, and resuming runs the lost one again."""
    short = [a.replace("trainer.epochs=100000", "trainer.epochs=4") for a in SWEEP]
    process = gradlab.start(*short, "hydra.launcher.workers=2", "hydra.launcher.lanes=2", cwd=tmp_path, joined=True)
    wait_for(lambda: begun(tmp_path, 4), process)
    victim = children(process.pid)[0]
    os.kill(victim, signal.SIGKILL)
    said = process.communicate(timeout=200)[0]
    assert process.returncode == 1
    assert "2 jobs were lost: its process ended (-9)" in said
    codes = [row["exit_code"] for row in rows(tmp_path / "sweep")]
    assert sorted(codes) == ["0", "0", "1", "1"]
    lost = codes.index("1")
    assert "its process ended" in Left(tmp_path / "sweep" / str(lost)).diagnosis["sentence"]
    stale = tmp_path / "sweep" / str(lost) / "report.html"
    stale.write_text("of the run that was lost")
    again = gradlab("resume=sweep", cwd=tmp_path, timeout=200)
    assert again.code == 0, again.err
    assert "2 jobs as lanes" in again.out and "of the run that was lost" not in stale.read_text()
    assert [row["exit_code"] for row in rows(tmp_path / "sweep")] == ["0"] * 4


@pytest.mark.parametrize("who", [pytest.param("launcher", marks=pytest.mark.slow), "everyone"])
def test_ctrl_c_ends_at_once_and_resuming_goes_on(gradlab: Commands, tmp_path: Path, who: str) -> None:
    process = gradlab.start(*SWEEP, cwd=tmp_path, joined=True)
    wait_for(lambda: begun(tmp_path, 2), process)
    workers = children(process.pid)
    began = time.monotonic()
    for pid in [process.pid] + (workers if who == "everyone" else []):  # as a terminal does
        os.kill(pid, signal.SIGINT)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 130 and time.monotonic() - began < 20
    assert "0 of 4 jobs have finished; the others run with: python -m gradlab resume=sweep" in said
    assert "Traceback" not in said and gone(workers)
