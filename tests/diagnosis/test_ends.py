"""How a run ends: judged by what it came to, and not by what it was in between."""

import pytest
from test_rules import FLAT, line, verdict


@pytest.mark.parametrize(("warm", "expected"), [(20, "not_learning"), (100, "not_learning"), (190, "too_short")])
def test_a_warm_up_that_has_ended_is_no_rate_that_rises(warm: int, expected: str) -> None:
    lines = [line(i, FLAT[i % len(FLAT)]) | {"lr": 0.003 * min(1.0, i / warm)} for i in range(1, 251)]
    found = verdict(lines, constant=2.0)
    assert found.verdict == expected
    assert ("rose until update 190" in found.sentence) == (expected == "too_short")
