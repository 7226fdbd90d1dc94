"""The table of mistakes that the audit and a watch read."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import gradlab
from gradlab.audit.command import main
from gradlab.audit.rules.registry import load_rules
from gradlab.codes import CODES, NAMED, SEVERITIES, UNREADABLE

WATCH = Path(gradlab.__file__).parent / "watch"


def run_time() -> set[str]:
    """Names that a watch can tell."""
    text = "\n".join(p.read_text() for p in WATCH.glob("*.py") if p.name != "__init__.py")
    return {name for name in NAMED if f'"{name}"' in text}


def test_each_is_one_thing_and_said_in_full():
    assert len(CODES) == len(NAMED)
    for code, kind in CODES.items():
        assert re.fullmatch(r"GL\d{3}", code)
        assert kind.severity in SEVERITIES
        assert all((kind.message, kind.why, kind.mend, kind.example))
        assert not kind.mend.endswith(".")


def test_the_rules_say_what_the_table_says():
    found = load_rules()
    for code, rule in found.items():
        assert vars(rule).items() >= vars(CODES[code]).items()
    assert set(found) | {NAMED[name].code for name in run_time()} | {UNREADABLE} == set(CODES)


@pytest.mark.parametrize("code", CODES)
def test_every_code_is_explained_by_number_and_name(code, capsys):
    assert main(["--explain", code]) == 0
    said = capsys.readouterr().out
    assert main(["--explain", CODES[code].name]) == 0
    assert capsys.readouterr().out == said
    assert CODES[code].message in said and CODES[code].mend in said


def test_the_list_has_those_of_run_time(capsys):
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == sorted(CODES)
    assert {line.split()[0] for line in lines if "run time" in line} == set(CODES) - set(load_rules()) - {UNREADABLE}


def test_a_watch_tells_most_of_them():
    assert len(run_time()) >= 39


def test_it_needs_the_standard_library_alone():
    code = "import gradlab.codes, sys; assert not {'torch', 'numpy', 'hydra'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
