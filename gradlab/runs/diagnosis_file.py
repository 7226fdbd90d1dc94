"""diagnosis.json: what it holds of a run that has ended, and of a job that could not run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gradlab.base.json_lines import plain, write_json
from gradlab.diagnosis.finding import Diagnosis
from gradlab.diagnosis.replay.overflow import Overflow
from gradlab.runs.measured import lost_at, measured
from gradlab.runs.record import RunRecord
from gradlab.train.outcome import Outcome


def content(
    folder: Path,
    diagnosis: Diagnosis,
    outcome: Outcome,
    exit_code: int,
    overflow: Overflow | None = None,
    overrides: Sequence[str] = (),
    planned: int | None = None,
    remedy: dict[str, Any] | None = None,
    watch: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """What diagnosis.json holds: the verdict with its evidence, how the run ended, and what began it.

    planned: updates, had it come to its end. remedy: what remedies changed. watch: of a watched loop, its facts.
    """
    found = diagnosis.as_dict() | {
        "ill": diagnosis.unhealthy,
        "outcome": asdict(outcome),
        "first_overflow": overflow.as_dict() if overflow else None,
        "exit_code": exit_code,
        "overrides": list(overrides),
        "planned": planned,
        "remedy": remedy,
    }
    if watch is not None:  # whose code is not known: it has no candidates
        found |= {"remedies": [], "watch": watch}
    found["measured"] = measured(RunRecord(folder).updates, lost_at(found))
    made: dict[str, Any] = plain(found)
    return made


def write(folder: Path, content: dict[str, Any]) -> None:
    """Write diagnosis.json."""
    write_json(folder / "diagnosis.json", content)


def write_error(
    folder: Path, message: str, exit_code: int, remedy: dict[str, Any] | None = None, overrides: list[str] | None = None
) -> None:
    """diagnosis.json of a job of a sweep without a measurement: no verdict, and the reason."""
    content = {"verdict": None, "sentence": message, "exit_code": exit_code, "remedy": remedy, "overrides": overrides}
    with suppress(OSError):  # reported already, and the folder may be the fault
        write(folder, content)
