"""The record of a run: what it reads, how often, and from what state of the folder."""

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import made
import pytest

from gradlab.base.option import Invalid
from gradlab.list import main as list_runs
from gradlab.report import figures
from gradlab.report.pages.run_facts import facts
from gradlab.report.terminal.charts import plots
from gradlab.runs.record import FILES, KILLED, NUMBERS, STATES, RunRecord
from gradlab.runs.summary import summarise

WATCHED: list[Counter[str]] = []


def count(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and WATCHED:
        WATCHED[-1][str(arguments[0])] += 1


sys.addaudithook(count)


@pytest.fixture
def opened() -> Iterator[Counter[str]]:
    """The files that are opened, and how often."""
    WATCHED.append(Counter())
    yield WATCHED[-1]
    WATCHED.pop()


def below(opened: Counter[str], folder: Path) -> dict[str, int]:
    return {str(Path(name).relative_to(folder)): n for name, n in opened.items() if name.startswith(str(folder))}


def read_everything(run: RunRecord) -> dict[str, Any]:
    """Every part of a record; none of them may raise."""
    names = [name for name in vars(type(run)) if not name.startswith("_") and not callable(getattr(type(run), name))]
    assert {"diagnosis", "config", "state", "numbers", "clip_threshold"} <= set(names)
    return {name: getattr(run, name) for name in names}


def test_each_file_is_read_once_and_none_before_it_is_asked_for(tmp_path: Path, opened: Counter[str]) -> None:
    folder = made.collapse(tmp_path / "run")
    run = RunRecord(folder)
    opened.clear()
    assert run.verdict == "scale_collapse" and below(opened, folder) == {"diagnosis.json": 1}
    assert run.outcome["applied"] == 80 and run.state == "scale_collapse" and run.overrides and run.numbers
    assert below(opened, folder) == {"diagnosis.json": 1, "metrics.jsonl": 1}, "made by an older version: not measured"
    first, second = read_everything(run), read_everything(run)
    assert first == second and set(below(opened, folder).values()) == {1}


def test_what_is_read_is_what_the_run_wrote(tmp_path: Path) -> None:
    run = RunRecord(made.collapse(tmp_path / "a" / "run"))
    assert run.name == "a/run" and len(run.updates) == 100 and len(run.evaluations) == 1
    assert math.isnan(run.updates[-1]["train/loss"]) and math.isinf(run.updates[49]["grad/norm"])
    assert run.layer_header["order"] == [f"layers.{i}" for i in range(4)] and len(run.layer_records) == 20
    assert run.config == {"clip": {"max_norm": 1.5}, "seed": 0, "expect": None}
    assert run.fields == {"clip.max_norm": 1.5, "seed": 0, "expect": None} and run.choices == {"clip": "norm"}
    assert run.overrides == ["clip=norm", "optimizer.lr=0.03"] and run.typed == ["clip=norm"]
    assert (run.numbers["updates"], run.numbers["planned"], run.numbers["eval_loss"]) == (80, 200, 2.5)
    assert tuple(run.numbers) == NUMBERS


def test_a_story_is_read_with_the_values_of_its_fields(tmp_path: Path) -> None:
    story = "optimizer:\n  lr: 0.1\nstory: a rate of ${optimizer.lr}, and ${no.such} field\n"
    run = RunRecord(made.run(tmp_path / "run", [], config=story))
    assert run.config["story"] == "a rate of 0.1, and ${no.such} field"


DAMAGE: dict[str, Callable[[str], str]] = {
    "empty": lambda text: "",
    "half": lambda text: text[: len(text) // 2],
    "other JSON": lambda text: "[1, 2]\n",
    "no JSON": lambda text: "}{\n: - :\n",
    "a number": lambda text: "7\n",
}


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("name", [*FILES, ".hydra/hydra.yaml"])
def test_a_damaged_file_reads_as_missing(tmp_path: Path, name: str, how: str) -> None:
    damaged, missing = made.collapse(tmp_path / "a" / "run"), made.collapse(tmp_path / "b" / "run")
    for folder in (damaged, missing):
        for other in ("environment.json", "replay.json"):
            (folder / other).write_text('{"python": "3.11"}')
    (damaged / name).write_text(DAMAGE[how]((damaged / name).read_text()))
    (missing / name).unlink()
    run = RunRecord(damaged)
    content, other = read_everything(run), read_everything(RunRecord(missing))
    if how in ("no JSON", "a number") and name in FILES:
        assert content[FILES[name]] == other[FILES[name]]
    assert run.state in (*STATES, "scale_collapse") and summarise(run).lines
    if name in run.unreadable and name in FILES:
        with pytest.raises(Invalid, match="cannot be read"):
            run.check(name)


@pytest.mark.parametrize("skipped", [19, 20])
def test_all_updates_that_were_skipped_are_told_once(tmp_path: Path, skipped: int) -> None:
    folder = made.collapse(tmp_path / "run")
    told = json.loads((folder / "diagnosis.json").read_text())
    told["outcome"] |= {"first_failed_attempt": 91, "first_failed_epoch": 2}
    told["evidence"] |= {"scale_fell_from": 81, "scale_fell_in_epoch": 2, "skipped_since": skipped}
    told["evidence"]["skipped_last_in_a_row"] = 10
    (folder / "diagnosis.json").write_text(json.dumps(told))
    lines, some = summarise(RunRecord(folder)).lines, "19 of the 20 updates from there on were skipped, the last 10"
    assert any(line.startswith(some) for line in lines) == (skipped == 19)
    assert ("every update from there on was skipped" in lines) == (skipped == 20)


def test_a_folder_with_nothing_in_it(tmp_path: Path) -> None:
    run = RunRecord(tmp_path / "nothing")
    assert not run.unreadable and read_everything(run)["state"] == "pretrained"
    (tmp_path / "nothing" / ".hydra").mkdir(parents=True)
    assert RunRecord(tmp_path / "nothing").state == KILLED


CLIPS = {
    "norm": ("clip:\n  max_norm: 1.5\n", 1.5),
    "norm of type 1": ("clip:\n  max_norm: 1.5\n  norm_type: 1.0\n", None),
    "per_layer": ("clip:\n  max_norm: 1.5\n  overrides: {}\n", None),  # of every layer, and not of the global norm
    "value": ("clip:\n  max_value: 1.5\n", None),
    "zclip": ("clip:\n  max_norm: 1.5\n  z_max: 2.5\n", None),
    "none": ("seed: 0\n", None),
}


@pytest.mark.parametrize("clip", CLIPS)
def test_page_figures_and_terminal_show_one_threshold(tmp_path: Path, clip: str) -> None:
    config, expected = CLIPS[clip]
    lines = [made.line(at, 2.0 + at % 2) for at in range(1, 30)]
    folder = made.run(
        tmp_path / "run", lines, made.diagnosis(), config=config, choices=f"      clip: {clip.split()[0]}\n"
    )
    run = RunRecord(folder)
    assert run.clip_threshold == expected and facts(run)["clip_threshold"] == expected
    loss, norm = plots(run)[:2]
    assert (loss.level, norm.level) == (None, expected) and ("clipped beyond" in norm.title) == (expected is not None)
    drawn: list[float] = []

    class Panel:
        def axhline(self, level: float, **style: Any) -> None:
            drawn.append(level)

    for name in ("train/loss", "grad/norm"):
        figures.bound(Panel(), name, [run, run])
    assert drawn == ([expected] if expected else [])


def test_a_remedy_that_changed_the_clipping_changes_the_threshold(tmp_path: Path) -> None:
    remedy = {"applies": True, "changed": {"clip": ["norm", "per_layer"]}}
    folder = made.run(tmp_path / "run", [made.line(1, 1.0)], made.diagnosis(remedy=remedy))
    assert RunRecord(folder).choices["clip"] == "per_layer" and RunRecord(folder).clip_threshold is None


def test_a_hundred_jobs_are_listed_with_one_file_opened_each(
    tmp_path: Path, opened: Counter[str], capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = tmp_path / "sweep"
    measured = {"updates": 3, "skipped": 0, "loss/final": 1.0, "grad/norm_max": 2.0}
    for i in range(100):
        content = made.diagnosis(measured=measured, overrides=[f"seed={i}"])
        content["outcome"]["eval"] = []
        (sweep / str(i) / ".hydra").mkdir(parents=True)
        (sweep / str(i) / "diagnosis.json").write_text(json.dumps(content))
    (sweep / "multirun.yaml").write_text("")
    opened.clear()
    assert list_runs([str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["verdicts"] == {"healthy": 100}
    assert below(opened, sweep) == {f"{i}/diagnosis.json": 1 for i in range(100)}
