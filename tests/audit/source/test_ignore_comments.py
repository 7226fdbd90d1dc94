"""`# gradlab: ignore[...]`: what it silences, and what is printed about one that names no rule."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradlab.audit.command import main

LOOP = (Path(__file__).parents[1] / "wrong" / "clip_after_step.py").read_text()


@pytest.mark.parametrize(
    ("comment", "message"),
    [
        ("ignore", ""),
        ("ignore[GL101]", ""),
        ("ignore [gl101 clip-by-value]: it is meant", ""),
        ("ignore[WRONG, GL101]", "ignore[WRONG] silences nothing: no such rule"),
        ("ignore[clip-after-stepp, clip-after-step]", "no such rule (did you mean clip-after-step?)"),
    ],
)
def test_comments_that_silence(comment, message, tmp_path, capsys):
    (tmp_path / "a.py").write_text(LOOP.replace("# expect: GL101", f"# gradlab: {comment}"))
    assert main([str(tmp_path)]) == 0
    printed = capsys.readouterr().err
    assert printed.count("\n") == bool(message) and message in printed


@pytest.mark.parametrize(
    ("comment", "message"),
    [
        ("ignored, see below", ""),
        ("ignore[GL102]", ""),
        ("ignore[clip-after-stepp]", "no such rule (did you mean clip-after-step?)"),
        ("ignore[GL1]", "ignore[GL1] silences nothing: no such rule (did you mean GL101?)"),
        ("ignore[GL999]", "ignore[GL999] silences nothing: no such rule\n"),
        ("ignore[]", "`# gradlab: ignore[]` names no rule, and silences nothing"),
        ("ignore[GL101", "`# gradlab: ignore[GL101` is not closed, and silences nothing"),
        ("ignore[GL101: why]", "ignore[GL101:] silences nothing: no such rule"),
    ],
)
def test_comments_that_do_not_silence(comment, message, tmp_path, capsys):
    (tmp_path / "a.py").write_text(LOOP.replace("# expect: GL101", f"# gradlab: {comment}"))
    assert main([str(tmp_path)]) == 1
    printed = capsys.readouterr().err
    assert message in printed and bool(printed) == bool(message)
    assert all(line.startswith(f"{tmp_path}/a.py:15: ") for line in printed.splitlines())


def test_a_string_is_no_comment(tmp_path, capsys):
    (tmp_path / "a.py").write_text('"""Write\n# gradlab: ignore[CODE]\n"""\nx = "# gradlab: ignore[CODE]"\n')
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().err == ""


def test_a_comment_of_a_notebook_is_reported_by_its_cell(tmp_path, capsys):
    cells = [{"cell_type": "code", "source": text} for text in ("x = 1", "y = 2\nz = 3  # gradlab: ignore[CODE]")]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}))
    assert main([str(tmp_path)]) == 0
    assert f"{tmp_path}/a.ipynb:cell 2:2: ignore[CODE] silences nothing" in capsys.readouterr().err
