"""The summary of a watch at its end: facts for diagnosis.json and the page, and text."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gradlab.watch.call_site import format_site
from gradlab.watch.faults import FaultRecord
from gradlab.watch.output.optimizer_output import OptimizerOutput
from gradlab.watch.rules.lr_schedule import LONG
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

SHOWN = 3
"""Optimizers that are shown though they made few updates, as where one is made for each batch."""


def report_lines(
    outputs: Sequence[OptimizerOutput], faults_of: Callable[[OptimizerTracker], list[FaultRecord]], scaled: bool
) -> list[str]:
    """The reports of all optimizers. faults_of: an optimizer's mistakes. scaled: whether a loss scale is in use."""
    several = len(outputs) > 1
    short = [o for o in outputs if o.num_updates < LONG and not faults_of(o.tracker)][SHOWN:]
    lines = [line for o in outputs if o not in short for line in o.report(faults_of(o.tracker), scaled, several)]
    return [*lines, *[f"{len(short)} other optimizers made fewer than {LONG} updates each"] * bool(short)]


def facts(
    output: OptimizerOutput,
    outputs: Sequence[OptimizerOutput],
    faults: list[FaultRecord],
    report: list[str],
    calls: list[dict[str, Any]],
) -> dict[str, Any]:
    """The entry `watch` of one optimizer's diagnosis.json. report: its lines of text. calls: those of one update."""
    index = output.tracker.index
    return {
        "program": Path(sys.argv[0]).name if sys.argv else "",
        "optimizer": index,
        "optimizers": [
            {
                "kind": type(o.tracker.optimizer).__name__,
                "verdict": o.final.verdict if o.final else None,
                "ill": o.final is not None and o.final.unhealthy,
                "page": page_link(index, o.tracker.index),
            }
            for o in outputs
        ],
        "faults": [fault_facts(record) for record in faults],
        "report": report,
        "calls": calls,
    }


def page_link(here: int, there: int) -> str | None:
    """From one optimizer's page to another's; None for its own."""
    if here == there:
        return None
    up = "../" if here else ""
    return f"{up}optimizer{there}/report.html" if there else f"{up}report.html"


def fault_facts(record: FaultRecord) -> dict[str, Any]:
    file, line = (record.site[0].co_filename, record.site[1]) if record.site else ("", 0)
    kind = record.kind
    return {
        "code": record.code,
        "name": record.name,
        "severity": kind.severity,
        "place": format_site(record.site),
        "text": linecache.getline(file, line).strip(),
        "message": record.message,
        "update": record.update,
        "times": record.times,
        "occurrences": record.occurrences,
        "fix": kind.fix,
        "why": kind.explanation,
        "example": kind.example,
    }
