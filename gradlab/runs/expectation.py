"""`expect=`: the exit code of a run, from its verdict and what was expected."""

from __future__ import annotations

from gradlab.base.json_lines import from_object, number
from gradlab.diagnosis.finding import Diagnosis, Finding
from gradlab.runs.outcome_class import HEALTHY
from gradlab.runs.record import RunRecord


def diagnosis_of(run: RunRecord) -> Diagnosis:
    """What a run's diagnosis.json holds, as an object."""
    content = number(run.diagnosis)
    diagnosis = from_object(Diagnosis, content)
    diagnosis.findings = [from_object(Finding, f) for f in content.get("findings") or []]
    return diagnosis


def judged(run: RunRecord) -> tuple[int, str]:
    """`judge` of a run's record, as it was printed when the run ended."""
    return judge(run.config.get("expect"), diagnosis_of(run))


def judge(expect: str | list[str] | None, diagnosis: Diagnosis) -> tuple[int, str]:
    """Exit code (0 as expected, 1 not) and its sentence.

    A list: any of its verdicts is expected. `healthy`: any verdict with which nothing is wrong.
    """
    seen = diagnosis.verdict
    if expect == "any":
        return 0, ""
    if expect is None and seen == "too_short" and not diagnosis.unhealthy:
        return 0, "the run is neither healthy nor unhealthy: it is too short to judge"
    if expect is None:
        return int(diagnosis.unhealthy), f"the run is unhealthy: {seen}" if diagnosis.unhealthy else ""
    wanted = expect if isinstance(expect, list) else [expect]
    met = seen in wanted or ("healthy" in wanted and seen in HEALTHY)
    alike = met and seen not in wanted
    ending = "and saw it" if wanted == [seen] else f"{'and ' * alike}saw {seen}{', which is healthy too' * alike}"
    return int(not met), f"expected {' or '.join(wanted)}, {ending}"
