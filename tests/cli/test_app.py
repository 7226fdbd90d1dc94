"""The command: exit codes, errors in one or two lines, sweeps, resuming, and what is said at the end."""

import csv
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from forked import SHORT, Commands, Result, runs, told

from gradlab.base import errors
from gradlab.base.conf import conf_dir
from gradlab.base.option import Invalid
from gradlab.cli.arguments import parse
from gradlab.diagnosis.finding import SEVERITIES, Diagnosis, Finding
from gradlab.diagnosis.options import VERDICTS
from gradlab.runs import expectation
from gradlab.sweep.results import read


@pytest.mark.parametrize(
    ("written", "answer"),
    [
        ("why: x", "remedy/mine.yaml: must begin with the line `# @package remedy.mine`"),
        ("# @package remedy.mine\nsets:\n  optimizer.lr: 1", "mine.yaml: sets: no such field (did you mean set?); why"),
        ("# @package remedy.mine\nmultiply:\n  optimizer.lr: x", "mine.yaml: Value 'x' of type 'str' could not be"),
    ],
)
def test_a_remedy_file_that_is_wrong_is_named_with_what_it_may_hold(
    gradlab: Commands, tmp_path: Path, written: str, answer: str
) -> None:
    (tmp_path / "conf" / "remedy").mkdir(parents=True)
    (tmp_path / "conf" / "remedy" / "mine.yaml").write_text(f"{written}\n")
    assert answer in told(gradlab("--config-dir", "conf", "+remedy=mine", cwd=tmp_path))


@pytest.mark.slow
def test_a_resumed_run_keeps_its_model(gradlab: Commands, tmp_path: Path) -> None:
    given = ("model.layers=1", "model.width=4", "trainer.updates=2", "hydra.run.dir=run")
    assert gradlab("model=sigmoid_mlp", *given, cwd=tmp_path).code == 0
    for changed, answer in (
        ("model.layers=3", "model.layers=3: must be 1, as it was: a resumed run keeps its model"),
        ("model=resnet", "resume=run: is of another model: a resumed run keeps its model"),
    ):
        assert answer in told(gradlab("resume=run", changed, "trainer.updates=4", cwd=tmp_path))


@pytest.mark.slow
def test_a_file_of_ones_own_decides_whether_it_is_a_multirun(gradlab: Commands, tmp_path: Path) -> None:
    """Of gradlab's files only those of `sweep` do, so that without one's own Hydra need not compose to learn it."""
    assert {path.parent.name for path in conf_dir().rglob("*.yaml") if "mode:" in path.read_text()} == {"sweep"}
    mine = tmp_path / "conf" / "experiment" / "mine.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text("# @package _global_\nhydra:\n  mode: MULTIRUN\n  sweeper:\n    params:\n      seed: 0,1\n")
    for given in (("--config-dir", "conf"), (f"hydra.searchpath=[file://{tmp_path}/conf]",)):
        ended = gradlab("+experiment=mine", *given, "trainer.epochs=0", "hydra.sweep.dir=jobs", cwd=tmp_path)
        assert "0 of 2 jobs have finished" in ended.out, ended


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_device(gradlab: Commands, tmp_path: Path) -> None:
    assert "trainer.device=cuda: no CUDA device here" in told(gradlab("trainer.device=cuda", cwd=tmp_path))


def test_exit_codes_say_whether_the_run_ended_as_expected(gradlab: Commands, tmp_path: Path) -> None:
    short = [*SHORT, "model.activation=relu"]
    assert gradlab(*short, cwd=tmp_path).code == 0
    result = gradlab(*short, "expect=exploding", cwd=tmp_path)
    assert result.code == 1 and "expected exploding, saw too_short" in result.out
    lost = [*short, "optimizer=sgd", "optimizer.lr=1e30"]
    result = gradlab(*lost, cwd=tmp_path)
    seen = re.search(r"== verdict: (\w+)", result.out)[1]  # type: ignore[index]
    assert result.code == 1 and seen != "healthy" and f"the run is unhealthy: {seen}" in result.out
    assert gradlab(*lost, f"expect={seen}", cwd=tmp_path).code == 0
    assert len(runs(tmp_path)) == 4
    for run in runs(tmp_path):
        written = json.loads((run / "diagnosis.json").read_text())
        assert {"verdict", "evidence", "exit_code", "outcome"} <= set(written)


def test_judgement() -> None:
    for seen in VERDICTS:
        diagnosis = Diagnosis(seen, "")
        assert expectation.judge(None, diagnosis)[0] == 0
        for severity in SEVERITIES:
            found = Diagnosis(seen, "", findings=[Finding(seen, severity, "")])
            assert expectation.judge(None, found)[0] == (severity == "critical")
        assert expectation.judge("any", diagnosis) == (0, "")
        for expected in VERDICTS:
            nothing_wrong = expected == "healthy" and seen == "small_but_healthy"
            assert expectation.judge(expected, diagnosis)[0] == (expected != seen and not nothing_wrong)
            nothing_wrong_too = seen == "small_but_healthy" and expected != seen
            both = expectation.judge([expected, "healthy"], diagnosis)
            fails = seen not in (expected, "healthy", "small_but_healthy")
            ending = f"and saw {seen}, which is healthy too" if not fails and nothing_wrong_too else f"saw {seen}"
            assert both == (int(fails), f"expected {expected} or healthy, {ending}")


@pytest.mark.slow
def test_suggested_commands_keep_what_a_remedy_changed_and_can_be_pasted(gradlab: Commands, tmp_path: Path) -> None:
    odd = tmp_path / "it's a folder"
    odd.mkdir()
    (odd / "text.txt").write_text("to be or not to be " * 500)
    where = f"""data.path="{odd / "text.txt"}\""""
    lost = ["model=transformer", "model.layers=1", where, "trainer.epochs=1", "optimizer.lr=1e30", "clip=value"]
    treated = ["clip.max_value=9", "+remedy=noise", "trainer.progress=none"]
    result = gradlab(*lost, *treated, cwd=tmp_path)
    assert result.code == 0, result
    commands = [line.strip().split("   #")[0] for line in result.out.splitlines() if line.startswith("  python -m")]
    assert commands
    for command in commands:
        arguments = shlex.split(command)[3:]
        assert where in arguments and "expect=healthy" in arguments
        assert {"noise=gaussian", "noise=none"} & set(arguments)  # the noise is among what is suspected
        again = gradlab("--cfg", "job", *arguments, cwd=tmp_path)
        assert again.code == 0, again.err


def test_the_story_of_an_experiment_comes_first_as_it_is_written(gradlab: Commands, tmp_path: Path) -> None:
    folder = tmp_path / "mine" / "experiment"
    folder.mkdir(parents=True)
    lines = ["# @package _global_", "story: |", "  What [bold]this[/] shows."]
    (folder / "mine.yaml").write_text("\n".join(lines))
    short = [argument for argument in SHORT if "progress" not in argument]
    result = gradlab("--config-dir", "mine", "+experiment=mine", *short, "expect=any", cwd=tmp_path)
    assert result.code == 0, result
    assert result.out.splitlines()[0] == "What [bold]this[/] shows."
    (run,) = runs(tmp_path)
    assert run.parent.name == "mine"


def test_a_bad_job_does_not_end_the_sweep(gradlab: Commands, tmp_path: Path) -> None:
    result = gradlab("-m", *SHORT, "expect=any", "clip=norm", "clip.max_norm=1,-1,2", cwd=tmp_path)
    assert result.code == 2 and result.err == "gradlab: clip.max_norm=-1.0: must be > 0\n", result
    (sweep,) = runs(tmp_path)
    rows = list(csv.DictReader((sweep / "results.csv").read_text().splitlines(True)))
    assert [row["exit_code"] for row in rows] == ["0", "2", "0"]
    assert [row["job"] for row in rows] == ["0", "1", "2"] and "clip.max_norm=-1" in rows[1]["overrides"]
    assert rows[1]["verdict"] == "" and all(row["verdict"] for row in (rows[0], rows[2]))
    assert re.search(r"^ +1 +error", result.out, re.MULTILINE) and str(sweep.relative_to(tmp_path)) in result.out
    assert "2 of 3 jobs have finished; 1 job has an invalid command" in result.out and "resume=" not in result.out


def test_a_killed_job_counts_as_failed(tmp_path: Path) -> None:
    for job, content in (
        ("0", '{"verdict": "healthy", "exit_code": 0}'),
        ("1", None),
        ("10", "{"),
        ("2", '{"exit_code": 0}'),
    ):
        (tmp_path / job / ".hydra").mkdir(parents=True)
        (tmp_path / job / ".hydra" / "overrides.yaml").write_text("- seed=1\n")
        if content:
            (tmp_path / job / "diagnosis.json").write_text(content)
    assert [(row["job"], row["exit_code"]) for row in read(tmp_path)] == [("0", 0), ("1", 1), ("2", 0), ("10", 1)]


def weights(run: Path) -> torch.Tensor:
    model = torch.load(run / "checkpoint.pt", weights_only=True)["model"]
    return torch.cat([value.flatten() for value in model.values()])


def test_resume_keeps_configuration_and_folder(gradlab: Commands, tmp_path: Path) -> None:
    conf = tmp_path / "conf" / "clip"
    conf.mkdir(parents=True)
    (conf / "gentle.yaml").write_text("defaults: [norm, _self_]\nmax_norm: 0.1\n")
    base = ["--config-dir", str(conf.parent), *SHORT, "clip=gentle", "seed=5", "expect=any"]
    assert gradlab(*base, "trainer.epochs=2", "hydra.run.dir='a=b c'", cwd=tmp_path).code == 0
    assert gradlab(*base, "hydra.run.dir=short", cwd=tmp_path).code == 0
    overrides = (tmp_path / "short" / ".hydra" / "overrides.yaml").read_text()

    assert "clip.max_norm=-1.0" in told(gradlab("resume=short", "clip.max_norm=-1", cwd=tmp_path))
    assert "model.width=9: must be 8, as it was: a resumed run keeps its model" in told(
        gradlab("resume=short", "model.width=9", cwd=tmp_path)
    )
    assert (tmp_path / "short" / ".hydra" / "overrides.yaml").read_text() == overrides

    result = gradlab("resume=short", "trainer.epochs=2", cwd=tmp_path)
    assert result.code == 0, result
    assert runs(tmp_path) == [] and torch.equal(weights(tmp_path / "short"), weights(tmp_path / "a=b c"))
    assert gradlab("resume='a=b c'", cwd=tmp_path).code == 0
    updates = [
        json.loads(line)["update"]
        for line in (tmp_path / "short" / "metrics.jsonl").read_text().splitlines()
        if "train/loss" in line
    ]
    assert updates == [1, 2, 3, 4]
    counted = json.loads((tmp_path / "short" / "diagnosis.json").read_text())["evidence"]["updates"]
    assert counted == 4


def test_cfg_prints_the_composed_configuration(gradlab: Commands, tmp_path: Path) -> None:
    result = gradlab("--cfg", "job", "clip=norm", cwd=tmp_path)
    assert result.code == 0 and "clip:\n  max_norm: 1.0\n" in result.out and runs(tmp_path) == []
    assert gradlab("--cfg", "job", "--package", "clip", "clip=norm", cwd=tmp_path).out.endswith(
        "max_norm: 1.0\nnorm_type: 2.0\n"
    )
    treated = gradlab("--cfg", "job", "+remedy=clip_norm", "clip=none", cwd=tmp_path)
    assert treated.code == 0 and "clip:\n  max_norm: 1.0\n" in treated.out and "expect: any\n" in treated.out
    assert gradlab("--cfg", "job", "--package", "clip", "+remedy=clip_norm", cwd=tmp_path).out.endswith(
        "# @package clip\nmax_norm: 1.0\nnorm_type: 2.0\n"
    )
    everything = gradlab("--cfg", "all", "+remedy=clip_norm", "clip=none", cwd=tmp_path)
    assert everything.code == 0 and everything.out.startswith("hydra:\n") and everything.out.endswith(treated.out)
    told(gradlab("--cfg", "job", "+remedy=clip_norm", "clip=norm", cwd=tmp_path))
    story = ("--cfg", "job", "--resolve", "+remedy=lower_lr", "optimizer.lr=1.0", "story='at ${optimizer.lr}'")
    assert "story: at 0.3" in gradlab(*story, cwd=tmp_path).out
    result = gradlab("--info", "config", cwd=tmp_path)
    assert result.code == 0 and "max_norm" not in result.out and "epochs: 5" in result.out, result


@pytest.mark.parametrize(
    ("arguments", "overrides"),
    [
        ("a=1 -m b=2,3", "a=1 b=2,3"),
        ("a=1 --cfg job b=2 --package clip c=3", "a=1 b=2 c=3"),
        ("-cn a=1 a=1 --resolve b=2 --cfg=job", "a=1 b=2"),
        ("--config-dir x -m", ""),
        ("a=1 a=1 --info config b=2", "a=1 a=1 b=2"),
    ],
)
def test_flags_may_stand_anywhere(arguments: str, overrides: str) -> None:
    found = parse(arguments.split())
    assert found.overrides == overrides.split() and bool(found.multirun) == ("-m" in arguments)


def test_flags_between_overrides_are_as_anywhere_else(gradlab: Commands, tmp_path: Path) -> None:
    between = gradlab("clip=norm", "--cfg", "job", "seed=3", "--package", "clip", "clip.max_norm=2", cwd=tmp_path)
    assert (between.code, between.out) == (0, "# @package clip\nmax_norm: 2.0\nnorm_type: 2.0\n"), between


def test_output_that_cannot_be_written_is_told_with_its_path(gradlab: Commands, tmp_path: Path) -> None:
    (tmp_path / "outputs").write_text("a file where the folder should be")
    assert "outputs" in told(gradlab(*SHORT, cwd=tmp_path), code=1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = shutil.which("mount") and os.geteuid() == 0
    if (
        not mounted
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True).returncode
    ):
        pytest.skip("no file system can be mounted here")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


@pytest.mark.parametrize("width", [8, 256])
def test_full_disk_is_told_with_its_path(gradlab: Commands, small_disk: Path, width: int) -> None:
    """With the large model the checkpoint fails; with the small one the lines of metrics."""
    long = ["trainer.epochs=400", "model.layers=1", f"model.width={width}", "monitor.every=1", "trainer.progress=none"]
    result = gradlab(*long, "trainer.evaluate_every=0", "hydra.run.dir=run", "trainer.updates=2000", cwd=small_disk)
    said = told(Result(result.code, "", result.err), code=1)
    assert "No space left on device" in said and str(small_disk / "run") in said


def test_read_only_folder_is_told_with_its_path(gradlab: Commands, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    said = told(gradlab(*SHORT, cwd=small_disk), code=1)
    assert "Read-only file system" in said and "outputs" in said


def test_explain_keeps_the_traceback_of_a_fault_and_the_code_of_its_kind() -> None:
    assert errors.explain(ZeroDivisionError()) is None and errors.exit_code(ZeroDivisionError()) == 1
    assert errors.explain(Invalid("seed", -1, "must be 0")) == "seed=-1: must be 0"
    assert errors.exit_code(Invalid("seed", -1, "must be 0")) == 2
    missing, full = FileNotFoundError(2, "No such file or directory", "/x"), OSError(28, "No space left on device")
    assert errors.explain(missing) == "/x: No such file or directory" and errors.exit_code(missing) == 2
    assert errors.explain(full, Path("/run")) == "/run: No space left on device" and errors.exit_code(full) == 1


@pytest.mark.slow
@pytest.mark.distributed
def test_under_torchrun_an_error_is_said_once_and_a_bad_job_does_not_end_the_sweep(
    gradlab: Commands, tmp_path: Path
) -> None:
    sweep = ["-m", *SHORT, "expect=any", "data.batch_size=16,100000,32"]
    result = gradlab.torchrun(2, "-m", "gradlab", *sweep, cwd=tmp_path)
    assert result.code == 1 and result.err.count("data.batch_size=100000: must be at most 64") == 1, result.err
    rows = list(csv.DictReader((runs(tmp_path)[0] / "results.csv").read_text().splitlines(True)))
    assert [row["exit_code"] for row in rows] == ["0", "2", "0"] and len(runs(tmp_path)) == 1
    assert "Traceback" not in result.err
