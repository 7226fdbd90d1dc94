"""Every wrong script is found by its rule at its line and nothing else is; in every correct one nothing is found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gradlab.audit.file_audit import audit
from gradlab.audit.rules.registry import load_rules
from gradlab.audit.source.files import read
from gradlab.audit.source.project import Project

HERE = Path(__file__).parent


def found(path: Path) -> set[tuple[int, str]]:
    selected = {code: rule for code, rule in load_rules().items() if rule.default}
    return {(f.line, f.code) for f in audit(read(path), Project(), selected).findings}


def expected(path: Path) -> set[tuple[int, str]]:
    lines = enumerate(path.read_text().split("\n"), 1)
    return {(i, code) for i, line in lines if (m := re.search(r"# expect: (.*)", line)) for code in m[1].split(", ")}


@pytest.mark.parametrize("path", sorted((HERE / "wrong").glob("*.py")), ids=lambda path: path.stem)
def test_each_mistake_is_found_at_its_line_and_nothing_else(path: Path):
    assert expected(path)
    assert found(path) == expected(path)


@pytest.mark.parametrize("path", sorted((HERE / "right").glob("*.py")), ids=lambda path: path.stem)
def test_nothing_is_found_in_a_correct_loop(path: Path):
    assert {f for f in found(path) if f[1] not in ("GL307", "GL501")} == set()
