"""`python -m gradlab.show`: what a run's end said, once more, and curves of characters."""

import json
import math
import subprocess
import sys
from pathlib import Path

import made
import pytest
from forked import Commands
from helpers import environment
from hypothesis import example, given
from hypothesis import strategies as st

from gradlab.base.json_lines import Lines
from gradlab.report.terminal.braille import LABEL, Plot, draw
from gradlab.report.terminal.charts import plots
from gradlab.runs.record import RunRecord
from gradlab.show import main

SMALL = ("trainer.progress=none", "trainer.epochs=1", "data.samples=640", "hydra.run.dir=r")


@pytest.fixture(scope="module")
def ran(gradlab: Commands, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run that explodes, in fp16, and what it said."""
    folder = tmp_path_factory.mktemp("show")
    overrides = [*SMALL, "precision=fp16", "optimizer=sgd", "optimizer.lr=1e4", "model.init=normal", "expect=any"]
    made = gradlab(*[o for o in overrides if "init" not in o], cwd=folder)
    assert made.code == 0, made
    return folder / "r", made.out


def test_the_verdict_is_said_as_at_the_runs_end(ran: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    folder, said = ran
    panel = said[said.index("== verdict") :].splitlines()
    assert main([str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines[: len(panel)] if "folder: " not in line] == [x for x in panel if "folder: " not in x]
    assert any(line.startswith("loss: ") for line in lines[len(panel) :])
    assert all(len(line) <= 80 for line in lines if "│" in line)


def test_layers(ran: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    folder = ran[0]
    assert main([str(folder), "--layers", "--at", "1"]) == 0
    told = capsys.readouterr().out
    header, record = (json.loads(line) for line in (folder / "layers.jsonl").read_text().splitlines()[:2])
    norm = math.hypot(*(n for name, n in zip(header["names"], record["grad/layer"]) if name.startswith("head.")))
    row = next(line for line in told.splitlines() if line.startswith("head"))
    assert f"{norm:.3g}" in row and "█" in row
    assert main([str(folder), "--layers", "--at", "2"]) == 2
    assert "the nearest is 1" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["empty", "none", "sweep", "cut"])
def test_what_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "sweep" / "0").mkdir(parents=True)
    (tmp_path / "sweep" / "0" / "metrics.jsonl").touch()
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "metrics.jsonl").write_text("{]\n")
    assert main([str(tmp_path / name)]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and {"sweep": "runs are in 0", "none": "no such folder"}.get(name, "FOLDER=") in told


def test_killed_and_not_finite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run without a word, whose losses are NaN from the third update on."""
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "config.yaml").write_text("clip:\n  max_norm: 5.0\n")
    (tmp_path / ".hydra" / "hydra.yaml").write_text("hydra:\n  runtime:\n    choices:\n      clip: norm\n")
    lines = Lines(tmp_path / "metrics.jsonl")
    for i in range(1, 7):
        bad = i > 2
        line = {"update": min(i, 2), "attempt": i, "epoch": 1, "train/loss": math.nan if bad else 2.0 / i, "lr": 0.1}
        lines.write(
            line | {"grad/norm": math.inf if bad else 1.0 * i, "update/skipped": bad, "amp/scale": 65536 / 2**i}
        )
    lines.close()
    assert main([str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert told.startswith("== killed") and "4 skipped" in told
    assert "! not finite: 4 updates" in told and "x skipped: 4" in told and "clipped beyond 5" in told
    assert "learning rate 0.1 throughout" in told and "2^15" in told and "2^10" in told
    (tmp_path / "metrics.jsonl").write_text("")
    assert main([str(tmp_path)]) == 0 and "no update" in capsys.readouterr().out


def test_marks_of_one_update_are_both_seen() -> None:
    drawn = picture(draw(Plot("", range(100), [1.0] * 100, marks={"x": [10, 90], "!": [10]}), 60, 4, (0, 99)))
    assert len(drawn) == 2 + 4
    assert [drawn[0].count("x"), drawn[1].count("!")] == [2, 1] and drawn[0].index("x") == drawn[1].index("!")
    assert len(draw(Plot("", range(100), [1.0] * 100, marks={"x": [], "!": [3]}), 60, 4, (0, 99))) == 1 + 4


def test_a_curve_of_zeros_lies_on_the_axis_of_what_cannot_be_less() -> None:
    lines = draw(Plot("", range(100), [0.0] * 100), 60, 4, (0, 99))
    numbers = ["".join(c for c, _ in line).split("│")[0].strip() for line in lines]
    assert (numbers[0], numbers[-1]) == ("1", "0")
    assert picture(lines)[-1].strip() and not any(row.strip() for row in picture(lines)[:-1])


def picture(lines: list[list[tuple[str, str]]]) -> list[str]:
    return ["".join(character for character, _ in line)[LABEL + 1 :] for line in lines]


def test_a_spike_of_one_update_in_a_long_run_is_drawn() -> None:
    ys = [1.0] * 100_000
    ys[61_803] = 1000.0
    drawn = picture(draw(Plot("", range(100_000), ys, log=True), 60, 6, (0, 99_999)))
    assert drawn[0].strip() and drawn[0].index(drawn[0].strip()) == int(0.61803 * (60 - LABEL - 1))
    assert all(row.strip() for row in drawn)  # from bottom to top


def test_a_rising_line_rises_and_numbers_stand_beside_it() -> None:
    lines = draw(Plot("", range(100), [10.0**i for i in range(100)], log=True), 60, 5, (0, 99))
    rows = picture(lines)
    first = [len(row) - len(row.lstrip()) for row in rows]
    assert first == sorted(first, reverse=True) and first[-1] == 0
    text = ["".join(c for c, _ in line) for line in lines]
    assert text[0].split("│")[0].strip() == "1e+99" and text[-1].split("│")[0].strip() == "1"


def test_a_gap_is_a_gap_and_is_marked() -> None:
    ys = [1.0] * 40 + [math.nan] * 20 + [1.0] * 40
    rows = picture(draw(Plot("", range(100), ys, marks={"!": range(40, 60)}), LABEL + 101, 4, (0, 99)))
    curve = [i for row in rows[1:] for i, c in enumerate(row) if c != " "]
    assert not [i for i in curve if 41 <= i <= 58] and {40, 59} >= {i for i in curve if 39 < i < 60}
    assert rows[0].strip() == "!" * 20


def test_without_unicode_all_is_ascii() -> None:
    plot = Plot("", range(10), [float(i) for i in range(10)], level=4.0, points=[(3, 2.0)])
    assert all(character.isascii() for line in draw(plot, 40, 5, (0, 9), ascii=True) for character, _ in line)


@example([1.0, 1.0000000000000002], True, 40, 4, None)
@example([5e-324, 1e-323], False, 40, 4, 1.0)
@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=50),
    st.booleans(),
    st.integers(1, 120),
    st.integers(1, 12),
    st.none() | st.floats(1e-3, 1e3),
)
def test_whatever_the_values_the_picture_has_its_size(
    ys: list[float], log: bool, width: int, height: int, level: float | None
) -> None:
    lines = draw(Plot("", range(len(ys)), ys, log, level), width, height, (0, max(len(ys) - 1, 0)))
    assert len(lines) == max(height, 2) and {len(line) for line in lines} == {max(width, LABEL + 5)}


def test_no_colour_and_no_terminal_are_plain(ran: tuple[Path, str]) -> None:
    command = [sys.executable, "-m", "gradlab.show", str(ran[0])]
    shown = subprocess.run(command, env=environment() | {"PYTHONIOENCODING": "ascii"}, capture_output=True, timeout=100)
    assert shown.returncode == 0, shown.stderr
    assert b"\x1b" not in shown.stdout and shown.stdout.isascii()


@pytest.mark.parametrize(
    ("clip", "coefficient", "before"), [("none", 1.0, False), ("norm", 1.0, True), ("none", 0.5, True)]
)
def test_a_norm_is_before_clipping_where_there_is_any(
    tmp_path: Path, clip: str, coefficient: float, before: bool
) -> None:
    """Also in a loop of one's own, of which no configuration tells."""
    steps = [made.line(i, 2.0) | {"clip/coefficient": coefficient} for i in range(1, 9)]
    folder = made.run(tmp_path / "run", steps, made.diagnosis(), choices=f"      clip: {clip}\n")
    title = plots(RunRecord(folder))[1].title
    assert title.startswith("gradient norm") and ("before clipping" in title) == before
