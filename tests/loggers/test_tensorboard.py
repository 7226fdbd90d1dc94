"""`logger=tensorboard`: event files, read back by TensorBoard's own reader."""

import json
import math
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forked import Commands
from helpers import wait_for
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

from gradlab.base import errors
from gradlab.base.json_lines import read_lines
from gradlab.loggers.base import About
from gradlab.loggers.local import read_run
from gradlab.loggers.options import TensorBoardOption
from gradlab.loggers.tensorboard import flat

SMALL = ("data.samples=640", "model.layers=2", "model.width=8", "clip=norm", "expect=any", "trainer.progress=none")


def run(gradlab: Commands, folder: Path, *overrides: str) -> None:
    made = gradlab(*SMALL, *overrides, cwd=folder, timeout=200)
    assert made.code == 0, made


def events(folder: Path) -> Any:
    """All of what a run's event files hold."""
    everything = {"scalars": 0, "tensors": 0, "histograms": 0, "images": 0}
    return EventAccumulator(str(folder / "tensorboard"), size_guidance=everything).Reload()


def check_metrics(folder: Path) -> None:
    """Every number of every line of metrics.jsonl is there, at its update, in order, as float32; and no other."""
    seen, lines = events(folder), list(read_lines(folder / "metrics.jsonl"))
    for name in {name for line in lines for name in line}:
        expected = [(line["update"], np.float32(line[name])) for line in lines if name in line]
        found = [(e.step, np.float32(e.value)) for e in seen.Scalars(name)]
        assert len(found) == len(expected), name
        assert all(
            a[0] == b[0] and (a[1] == b[1] or a[1] != a[1] == (b[1] != b[1])) for a, b in zip(found, expected)
        ), name


def hparams(folder: Path) -> dict[str, Any]:
    """What the plugin for hyperparameters reads."""
    content = events(folder).SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
    info = metadata.parse_session_start_info_plugin_data(content)
    return {k: getattr(v, v.WhichOneof("kind")) for k, v in info.hparams.items()} | {"_group": info.group_name}


@pytest.fixture(scope="module")
def ran(gradlab: Commands, once: Any) -> Path:
    options = (
        "logger=tensorboard",
        "logger.tensorboard.layers_every=10",
        "logger.tensorboard.max_layers=2",
        "trainer.epochs=2",
    )
    more = "optimizer.lr=0.01", "hydra.run.dir=r"
    return once("tensorboard", lambda folder: run(gradlab, folder, *options, *more)) / "r"  # type: ignore[no-any-return]


def test_every_number_of_every_update_is_there(ran: Path) -> None:
    check_metrics(ran)


def test_the_verdict_is_told_in_words_in_numbers_and_as_a_hyperparameter(ran: Path) -> None:
    seen, told = events(ran), json.loads((ran / "diagnosis.json").read_text())
    text = seen.Tensors("verdict")[0].tensor_proto.string_val[0].decode()
    assert text.startswith(f"    verdict: {told['verdict']}\n    {told['sentence']}")
    given = hparams(ran)
    assert (given["verdict"], given["status"]) == (told["verdict"], "completed")
    assert (given["optimizer.lr"], given["clip.max_norm"], given["model.layers"]) == (0.01, 1.0, 2)
    assert (given["clip"], given["precision"], given["model"]) == ("norm", "fp32", "sigmoid_mlp")
    assert given["trainer.updates"] == "null" and not any(name.startswith(("diagnosis.", "logger.")) for name in given)
    content = seen.SummaryMetadata(metadata.SESSION_END_INFO_TAG).plugin_data.content
    assert metadata.parse_session_end_info_plugin_data(content).status == 1  # STATUS_SUCCESS in api.proto
    (final,) = seen.Scalars("run/loss/final")
    assert (
        np.float32(final.value) == np.float32(told["measured"]["loss/final"])
        and final.step == told["outcome"]["applied"]
    )


def test_layers_are_looked_at_now_and_then_and_are_bounded(ran: Path) -> None:
    seen, names = events(ran), next(read_lines(ran / "layers.jsonl"))["names"]
    recorded = [(line, layers) for line, layers in read_run(ran) if layers]
    curves = {tag for tag in seen.Tags()["scalars"] if tag.startswith("grad/layer/")}
    assert curves == {f"grad/layer/{names[i]}" for i in (0, -1)}
    wanted = {line["update"]: layers for line, layers in recorded if (line["attempt"] - 1) % 10 == 0}
    assert len(wanted) == 4
    for i in (0, -1):
        found = {e.step: e.value for e in seen.Scalars(f"grad/layer/{names[i]}")}
        assert found == {step: np.float32(layers["grad/layer"][i]) for step, layers in wanted.items()}
    distributions = seen.Histograms("grad/layers_log10")
    assert [e.step for e in distributions] == list(wanted)
    first = distributions[0].histogram_value
    logs = [math.log10(v) for v in wanted[1]["grad/layer"] if v > 0]
    assert (first.num, first.min, first.max, sum(first.bucket)) == (len(logs), min(logs), max(logs), len(logs))


@pytest.mark.slow
def test_figures_when_asked(gradlab: Commands, ran: Path, tmp_path: Path) -> None:
    assert not events(ran).Tags()["images"]
    run(
        gradlab,
        tmp_path,
        "logger=tensorboard",
        "logger.tensorboard.figures=true",
        "trainer.epochs=1",
        "hydra.run.dir=r",
    )
    (image,) = events(tmp_path / "r").Images("figures/curves")
    assert image.encoded_image_string == (tmp_path / "r" / "figures" / "curves.png").read_bytes()


def test_what_is_not_finite_stays_visible(tmp_path: Path) -> None:
    sink: Any = TensorBoardOption().build(About(tmp_path, {}, "run"))
    sink.log({"update": 3, "attempt": 3, "train/loss": math.nan, "grad/norm": math.inf, "lr": None}, None)
    sink.finish({"outcome": {"status": "error", "error": "no memory"}}, tmp_path)
    seen = events(tmp_path)
    assert math.isnan(seen.Scalars("train/loss")[0].value) and seen.Scalars("grad/norm")[0].value == math.inf
    assert seen.Scalars("nonfinite/train/loss")[0].step == seen.Scalars("nonfinite/grad/norm")[0].step == 3
    assert seen.Tensors("verdict")[0].tensor_proto.string_val[0].decode() == "    no memory"


@pytest.mark.slow
def test_a_killed_run_that_was_resumed_has_every_update_once(gradlab: Commands, tmp_path: Path) -> None:
    """Also those that were logged after its last checkpoint, and are trained once more."""
    overrides = ("logger=tensorboard", "trainer.epochs=90", "trainer.checkpoint_every=137", "hydra.run.dir=r")
    process = gradlab.start(*SMALL, *overrides, cwd=tmp_path)
    folder = tmp_path / "r"
    wait_for((folder / "checkpoint.pt").is_file, process)
    wait_for(lambda: sum(p.stat().st_size for p in folder.glob("tensorboard/*")) > 10_000, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = len(events(folder).Scalars("update"))
    run(gradlab, tmp_path, "resume=r")
    check_metrics(folder)
    assert len(list((folder / "tensorboard").iterdir())) == 2
    assert before > 0 and len(events(folder).Tensors("verdict")) == 1


@pytest.mark.slow
def test_lanes_write_theirs_at_their_end(gradlab: Commands, tmp_path: Path) -> None:
    sweep = (
        "hydra.mode=MULTIRUN",
        "hydra/launcher=vectorized",
        "optimizer.lr=0.01,0.1",
        "hydra.sweep.dir=s",
        "trainer.epochs=1",
    )
    run(gradlab, tmp_path, "logger=tensorboard", *sweep)
    for job, lr in enumerate((0.01, 0.1)):
        check_metrics(tmp_path / "s" / str(job))
        assert hparams(tmp_path / "s" / str(job))["optimizer.lr"] == lr
    assert hparams(tmp_path / "s" / "0")["_group"] != hparams(tmp_path / "s" / "1")["_group"]


@pytest.mark.slow
@pytest.mark.distributed
def test_only_rank_0_logs(gradlab: Commands, tmp_path: Path) -> None:
    given = (*SMALL, "logger=tensorboard", "trainer.epochs=1", "hydra.run.dir=r")
    made = gradlab.torchrun(2, "-m", "gradlab", *given, cwd=tmp_path)
    assert made.code == 0, made.err
    assert len(list(tmp_path.rglob("*tfevents*"))) == 1
    check_metrics(tmp_path / "r")


def test_a_missing_package_is_two_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(errors.Usage) as refused:
        TensorBoardOption().check()
    assert str(refused.value).count("\n") == 1 and "pip install 'gradlab[tensorboard]'" in str(refused.value)


@pytest.mark.parametrize(
    "wrong",
    ["logger.tensorboard.layers_every=-1", "logger.tensorboard.max_layers=0", "logger.tensorboard.layer_every=1"],
)
def test_wrong_fields_are_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    from gradlab.cli.main import run as gradlab

    assert gradlab(["logger=tensorboard", wrong]) == 2
    assert "logger.tensorboard." in capsys.readouterr().err


def test_configuration_as_plain_values() -> None:
    config = {"a": {"b": 1, "c": None, "d": [1, 2]}, "story": "x", "seed": True, "diagnosis": {"x": 1}}
    assert flat(config) == {"a.b": 1, "a.c": "null", "a.d": "[1, 2]", "seed": True}
