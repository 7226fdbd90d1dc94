"""Several runs on one page: their curves laid over each other, their verdicts, and what they were told differently."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradlab.base.json_lines import write_whole
from gradlab.report.pages.page_template import embedded, filled, joined, part
from gradlab.report.pages.run_page import NAME
from gradlab.runs import contents as folders
from gradlab.runs.files import dotted

STYLES = ("base.css", "uplot.css", "run.css")
PROGRAMS = ("base.js", "uplot.js", "curves.js", "parts.js", "compare.js")
BYTES = 4_000_000
"""Of all runs' metrics.jsonl that a page holds."""
OF_NO_RUN = ("story", "resume", "expect", "trainer.progress", "trainer.threads")
"""Fields that do not change what a run does; nor do those under `remedy`, whose changes stand in their own fields."""


def write(paths: Sequence[Path], file: Path) -> Path:
    """Write the page of several runs."""
    runs = [folders.read(path, most=max(BYTES // len(paths), 20_000)) for path in paths]
    style, program = (joined(names) for names in (STYLES, PROGRAMS))
    title = html.escape(f"{len(runs)} runs compared")
    file.parent.mkdir(parents=True, exist_ok=True)
    data = embedded({"runs": [of(run, file) for run in runs], "fields": differing(runs)})
    write_whole(file, filled(part("compare.html"), title=title, style=style, program=program, data=data))
    return file


def of(run: folders.Folder, file: Path) -> dict[str, Any]:
    """What the page holds of a run; the layers stay in the run's own page."""
    page = run.path / NAME
    link = os.path.relpath(page, file.parent) if page.is_file() else None
    return run.facts() | {"metrics": run.metrics, "link": link and Path(link).as_posix(), "config": {}}


def differing(runs: Sequence[folders.Folder]) -> list[dict[str, Any]]:
    """The fields in which the configurations differ, with each run's value; None where a run has no such field."""
    flat = [run.choices | {name: worded(v) for name, v in dotted(run.config).items()} for run in runs]
    names = dict.fromkeys(name for values in flat for name in values if not name.startswith("remedy."))
    rows = [{"field": name, "values": [values.get(name) for values in flat]} for name in names if name not in OF_NO_RUN]
    return [row for row in rows if any(value != row["values"][0] for value in row["values"])]


def worded(value: Any) -> str:
    return "null" if value is None else str(value)
