"""The few values that sum up a run, from diagnosis.json: the same in every logger."""

from __future__ import annotations

from typing import Any

from gradlab.base.json_lines import number


def summary(diagnosis: dict[str, Any]) -> dict[str, Any]:
    """Verdict, status, counts and the last evaluation; what a run that ended without a verdict lacks is left out."""
    outcome = diagnosis.get("outcome") or {}
    values = {
        "verdict": diagnosis.get("verdict"),
        "sentence": diagnosis.get("sentence"),
        "status": outcome.get("status"),
        "error": outcome.get("error"),
        "exit_code": diagnosis.get("exit_code"),
        "first_failing_update": first_failing(diagnosis),
        "update": outcome.get("applied"),
        "attempts": outcome.get("attempts"),
        "epochs_completed": outcome.get("epochs_completed"),
        "seconds": outcome.get("seconds"),
    }
    last = (outcome.get("eval") or [{}])[-1]
    values |= {k: number(v) for k, v in last.items() if k.startswith("eval/")}
    return {k: v for k, v in values.items() if v is not None}


def first_failing(diagnosis: dict[str, Any]) -> int | None:
    """The attempt at which a failed run, or the finding of the verdict, began; None of a healthy run."""
    evidence, outcome = diagnosis.get("evidence") or {}, diagnosis.get("outcome") or {}
    if outcome.get("status") == "failed":
        known = [evidence.get("scale_fell_from"), outcome.get("first_failed_attempt")]
        if any(at is not None for at in known):
            return min(int(at) for at in known if at is not None)
    findings = diagnosis.get("findings") or []
    began: list[int | None] = [f.get("began") for f in findings if f.get("code") == diagnosis.get("verdict")]
    return next(iter(began), None)
