"""`expect=`: the exit code of a run, from its verdict and what was expected."""

from __future__ import annotations

from gradlab.diagnosis.finding import Diagnosis


def judge(expect: str | None, diagnosis: Diagnosis) -> tuple[int, str]:
    """Exit code (0 as expected, 1 not) and its sentence."""
    seen = diagnosis.verdict
    if expect == "any":
        return 0, ""
    if expect is None:
        return int(diagnosis.unhealthy), f"the run is unhealthy: {seen}" if diagnosis.unhealthy else ""
    return int(seen != expect), f"expected {expect}, {'and saw it' if seen == expect else f'saw {seen}'}"
