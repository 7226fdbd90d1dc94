"""How a search judges a run: whether it was stable, from its diagnosis.json alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from gradlab.runs import outcome_class
from gradlab.runs.record import RunRecord

ERROR = "no verdict"
"""Class of a run without a verdict, or too short for one."""


@dataclass(frozen=True)
class FinishedJob:
    """What is kept of a finished job."""

    job: str
    diagnosis: dict[str, Any]
    """Its diagnosis.json; empty where there is none."""

    @property
    def why(self) -> str:
        """Its verdict, or why there is none."""
        return str(self.diagnosis.get("verdict") or self.diagnosis.get("sentence") or "it left no diagnosis.json")


def read(folder: Path) -> dict[str, Any]:
    """The parts of a diagnosis.json that judging needs; empty if there is none, or half of one."""
    diagnosis = RunRecord(folder).diagnosis
    return {key: diagnosis[key] for key in KEPT if key in diagnosis} | {"lost": lost(diagnosis)} if diagnosis else {}


KEPT = ("verdict", "sentence", "ill", "learns", "evidence", "outcome", "exit_code", "remedy", "remedies")


def lost(diagnosis: dict[str, Any]) -> bool:
    """Whether a critical finding makes the run unstable; others, such as stalled, are of stable runs."""
    return any(outcome_class.finding_class(f) for f in diagnosis.get("findings", []))


def stable(diagnosis: dict[str, Any]) -> bool | None:
    """Whether a run completed and is stable; None without a verdict, or of too few updates to judge."""
    status = (diagnosis.get("outcome") or {}).get("status")
    if diagnosis.get("verdict") in (None, "too_short") or status in (None, "interrupted"):
        return None
    return status == "completed" and not diagnosis["lost"] and isfinite(float(diagnosis["evidence"]["loss_last"]))


def learns(diagnosis: dict[str, Any]) -> bool | None:
    """Whether a stable run is healthy and learns."""
    return stable(diagnosis) and not diagnosis["ill"] and outcome_class.learns(diagnosis)


JUDGES: dict[str, Callable[[dict[str, Any]], bool | None]] = {"stable": stable, "learns": learns}
"""How a run is judged: True, False, or None where it cannot be."""


def named(judge: str) -> Callable[[dict[str, Any]], str]:
    """The class that a judge puts a run into."""
    words = {True: judge, False: f"not {judge}", None: ERROR}
    return lambda diagnosis: words[JUDGES[judge](diagnosis)]


def verdict(diagnosis: dict[str, Any]) -> str:
    """The verdict itself as a class."""
    return ERROR if stable(diagnosis) is None else str(diagnosis["verdict"])


CLASSES: dict[str, Callable[[dict[str, Any]], str]] = {name: named(name) for name in JUDGES} | {"verdict": verdict}
"""Classes that neighbours of a map agree on, or not."""
