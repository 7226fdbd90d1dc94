"""Several runs on one page: their curves laid over each other, their verdicts, and the fields that differ."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradlab.base.fields import dotted
from gradlab.base.json_lines import write_whole
from gradlab.report.pages.page_template import page
from gradlab.report.pages.run_facts import facts, text_of
from gradlab.report.pages.run_page import NAME
from gradlab.runs.record import RunRecord

STYLES = ("base.css", "uplot.css", "run.css")
PROGRAMS = ("base.js", "uplot.js", "curves.js", "parts.js", "compare.js")
BYTES = 4_000_000
"""Of all runs' metrics.jsonl that a page holds."""
OF_NO_RUN = ("story", "resume", "expect", "trainer.progress", "trainer.threads")
"""Fields that do not change what a run does; nor do those under `remedy`, whose changes stand in their own fields."""


def write(paths: Sequence[Path], file: Path) -> Path:
    """Write the page of several runs."""
    runs = [RunRecord(path) for path in paths]
    contents = [content_of(run, file, max(BYTES // len(runs), 20_000)) for run in runs]
    data = {"runs": contents, "fields": differing(runs)}
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, page("compare.html", f"{len(runs)} runs compared", STYLES, PROGRAMS, data=data))
    return file


def content_of(run: RunRecord, file: Path, most: int) -> dict[str, Any]:
    """What the page in a file holds of a run, with at most so many bytes of metrics, and without layers."""
    own, (metrics, thinned) = run.path / NAME, text_of(run, "metrics", most)
    link = Path(os.path.relpath(own, file.parent)).as_posix() if own.is_file() else None
    return facts(run) | {"metrics": metrics, "thinned": thinned, "link": link, "config": {}}


def differing(runs: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """The fields in which the configurations differ, with each run's value; None where a run has no such field."""
    flat = [run.choices | {name: worded(v) for name, v in dotted(run.config).items()} for run in runs]
    names = dict.fromkeys(name for values in flat for name in values if not name.startswith("remedy."))
    rows = [{"field": name, "values": [values.get(name) for values in flat]} for name in names if name not in OF_NO_RUN]
    return [row for row in rows if any(value != row["values"][0] for value in row["values"])]


def worded(value: Any) -> str:
    return "null" if value is None else str(value)
