"""The table of mistakes that the audit and the watch share."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import gradlab
from gradlab.audit.command import main
from gradlab.audit.rules.registry import load_rules
from gradlab.codes import CODES, CODES_BY_NAME, SEVERITIES, UNREADABLE

ROOT = Path(__file__).parents[2]
WATCH = Path(gradlab.__file__).parent / "watch"
PITFALLS = {
    name
    for path in (Path(gradlab.__file__).parent / "pitfalls").glob("*.py")
    for name in re.findall(r'@option\("pitfall", "(\w+)"\)', path.read_text())
}


def reported_by_watch() -> set[str]:
    """Codes whose names stand in the source of the watch."""
    text = "\n".join(p.read_text() for p in WATCH.rglob("*.py"))
    return {code for code, kind in CODES.items() if f'"{kind.name}"' in text}


@pytest.mark.parametrize("code", CODES)
def test_each_entry_is_complete_and_well_formed(code):
    kind = CODES[code]
    assert re.fullmatch(r"GL\d{3}", code)
    assert kind.severity in SEVERITIES
    assert all((kind.message, kind.why, kind.wrong, kind.fix, kind.example))
    assert "\n" not in kind.message and len(kind.message) <= 120
    assert not kind.message.endswith(".") and not kind.fix.endswith(".")
    assert kind.why[0].isupper() and kind.why.endswith(".")
    assert not kind.measured or kind.measured.endswith(".")


def test_names_are_unique():
    assert len(CODES) == len(CODES_BY_NAME)


def test_each_entry_names_who_finds_it():
    in_audit = set(load_rules()) | {UNREADABLE}
    assert {code for code, kind in CODES.items() if "audit" in kind.found_by} == in_audit
    assert {code for code, kind in CODES.items() if "watch" in kind.found_by} == reported_by_watch()


def test_rules_have_the_texts_of_the_table():
    for code, rule in load_rules().items():
        assert vars(rule).items() >= vars(CODES[code]).items()


@pytest.mark.parametrize("code", CODES)
def test_pitfalls_and_experiments_that_it_names_exist(code):
    kind = CODES[code]
    assert not kind.pitfall or kind.pitfall in PITFALLS
    for name in re.findall(r"experiments/(\w+)", kind.explanation):
        assert (ROOT / "experiments" / name / "README.md").is_file()


@pytest.mark.parametrize("code", CODES)
def test_every_code_is_explained_by_number_and_name(code, capsys):
    assert main(["--explain", code]) == 0
    printed = capsys.readouterr().out
    assert main(["--explain", CODES[code].name]) == 0
    assert capsys.readouterr().out == printed
    assert CODES[code].message in printed and CODES[code].fix in printed


def test_the_list_shows_which_are_found_by_watch_alone(capsys):
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == sorted(CODES)
    at_run_time = {line.split()[0] for line in lines if "run time" in line}
    assert at_run_time == {code for code, kind in CODES.items() if kind.found_by == ("watch",)}


def test_a_watch_reports_most_of_them():
    assert len(reported_by_watch()) >= 39


def test_it_needs_the_standard_library_alone():
    code = "import gradlab.codes, sys; assert not {'torch', 'numpy', 'hydra'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
