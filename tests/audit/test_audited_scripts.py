"""Every wrong script is found by its rule at its line and nothing else is; in every correct one nothing is found."""

from __future__ import annotations

from pathlib import Path

import pytest
from audited_snippets import audited_script, expected

HERE = Path(__file__).parent


def scripts(folder: str) -> list[str]:
    return sorted(path.name for path in (HERE / folder).glob("*.py"))


@pytest.mark.parametrize("name", scripts("wrong"))
def test_each_mistake_is_found_at_its_line_and_nothing_else(name: str) -> None:
    marked = expected((HERE / "wrong" / name).read_text())
    assert marked
    assert {(f.line, f.code) for f in audited_script(f"wrong/{name}")} == marked


@pytest.mark.parametrize("name", scripts("right"))
def test_nothing_is_found_in_a_correct_loop(name: str) -> None:
    assert {f.code for f in audited_script(f"right/{name}")} <= {"GL307", "GL308", "GL501"}
