"""How a search judges a run: whether it was stable, from its diagnosis.json alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from gradlab.runs import outcome_class
from gradlab.runs.outcome_class import LOST
from gradlab.runs.record import RunRecord

ERROR = "no verdict"
"""Class of a run without a verdict."""


@dataclass(frozen=True)
class FinishedJob:
    """What is kept of a finished job."""

    job: str
    told: dict[str, Any]
    """Its diagnosis.json; empty where there is none."""

    @property
    def why(self) -> str:
        """Its verdict, or why there is none."""
        return str(self.told.get("verdict") or self.told.get("sentence") or "it left no diagnosis.json")


def read(folder: Path) -> dict[str, Any]:
    """The parts of a diagnosis.json that judging needs; empty if there is none, or half of one."""
    told = RunRecord(folder).diagnosis
    return {key: told[key] for key in KEPT if key in told} | {"lost": lost(told)} if told else {}


KEPT = ("verdict", "sentence", "ill", "learns", "evidence", "outcome", "exit_code", "remedy")


def lost(told: dict[str, Any]) -> bool:
    """Whether a critical finding means that the run is lost; others, such as stalled, are of stable runs."""
    return any(f["code"] in LOST and f["severity"] == "critical" for f in told.get("findings", []))


def stable(told: dict[str, Any]) -> bool | None:
    """Whether a run completed with nothing lost; None without a verdict."""
    status = (told.get("outcome") or {}).get("status")
    if not told.get("verdict") or status in (None, "interrupted"):
        return None
    return status == "completed" and not told["lost"] and isfinite(float(told["evidence"]["loss_last"]))


def learns(told: dict[str, Any]) -> bool | None:
    """Whether a stable run is healthy and learns."""
    return stable(told) and not told["ill"] and outcome_class.learns(told)


JUDGES: dict[str, Callable[[dict[str, Any]], bool | None]] = {"stable": stable, "learns": learns}
"""How a run is judged: True, False, or None where it cannot be."""


def named(judge: str) -> Callable[[dict[str, Any]], str]:
    """The class that a judge puts a run into."""
    words = {True: judge, False: f"not {judge}", None: ERROR}
    return lambda told: words[JUDGES[judge](told)]


def verdict(told: dict[str, Any]) -> str:
    """The verdict itself as a class."""
    return ERROR if stable(told) is None else str(told["verdict"])


CLASSES: dict[str, Callable[[dict[str, Any]], str]] = {name: named(name) for name in JUDGES} | {"verdict": verdict}
"""Classes that neighbours of a map agree on, or not."""
