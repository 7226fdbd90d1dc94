"""report.html of a run: made in about a millisecond from the text of its files, which the browser reads."""

from __future__ import annotations

import functools
import html
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gradlab.base.json_lines import write_whole
from gradlab.base.visible import one_line, visible
from gradlab.report.pages.page_template import embedded, filled, joined, part, safe
from gradlab.report.pages.run_facts import facts, text_of
from gradlab.runs.record import RunRecord

NAME = "report.html"
STYLES = ("base.css", "uplot.css", "run.css")
PROGRAMS = ("base.js", "uplot.js", "curves.js", "heat.js", "profile.js", "parts.js", "loop.js", "run.js")
PARTS = ("metrics.jsonl", "diagnosis.json")
"""The files without which there is nothing to show."""
SHARED = "page"
"""Folder of a sweep that holds the style and the program of all its runs' pages."""


def finished(folder: Path, config: dict[str, Any] | None = None) -> None:
    """Write the page of a run that has ended; one that cannot be written costs a line, and not the run."""
    try:
        write(folder, shared=(folder.parent / "multirun.yaml").is_file(), config=config)
    except Exception as error:
        reason = visible(" ".join(str(error).split()))[:200]
        file = one_line(str(folder / NAME))
        print(f"gradlab: {file} was not written: {reason or type(error).__name__}", file=sys.stderr)


def complete(jobs: Iterable[Path]) -> None:
    """Write the pages that are missing: of jobs of a sweep that were killed as they ended, or are older than pages."""
    for job in jobs:
        if not (job / NAME).is_file() and began(job):
            finished(job)


def began(folder: Path) -> bool:
    """Whether a run has left anything to show."""
    return any((folder / name).is_file() for name in PARTS)


def write(folder: Path, shared: bool = False, config: dict[str, Any] | None = None) -> Path:
    """Write a run's page into its folder. shared: style and program stand once in the folder above."""
    if shared:
        share(folder.parent)
    path = folder / NAME
    run = RunRecord(folder, config)
    content = facts(run) | {"live": False, "sweep": "../report.html" if shared else None}
    texts = {}
    for name in ("metrics", "layers"):
        texts[name], thinned = text_of(run, name)
        content["thinned"] |= thinned
    write_whole(path, page(run, content, texts, shared))
    return path


def following_page(folder: Path) -> str:
    """A page that asks the server that it came from for the run's content, and holds none itself."""
    run = RunRecord(folder, config={})
    run.diagnosis, run.environment, run.replay, run.choices, run.typed = {}, {}, {}, {}, []
    return page(run, facts(run) | {"live": True, "sweep": None}, {"metrics": "", "layers": ""})


def page(run: RunRecord, content: dict[str, Any], texts: dict[str, str], shared: bool = False) -> str:
    """content: see `facts`. texts: of metrics and layers."""
    title, safe_texts = f"{run.verdict or 'run'}: {run.name}", {name: safe(text) for name, text in texts.items()}
    return filled(part("run.html"), title=html.escape(title), data=embedded(content), **safe_texts, **assets(shared))


def assets(shared: bool) -> dict[str, str]:
    """The elements that bring style and program: themselves, or links to those that a sweep's pages share."""
    if shared:
        style = f'<link rel="stylesheet" href="../{SHARED}/run.css">'
        return {"style": style, "program": f'<script src="../{SHARED}/run.js"></script>'}
    style, program = (joined(names) for names in (STYLES, PROGRAMS))
    return {"style": f"<style>\n{style}</style>", "program": f"<script>\n{program}</script>"}


@functools.cache
def share(sweep: Path) -> None:
    """Put style and program where the pages of a sweep's runs look for them; once a process."""
    (sweep / SHARED).mkdir(exist_ok=True)
    for name, parts in (("run.css", STYLES), ("run.js", PROGRAMS)):
        partial = sweep / SHARED / f".{name}.{os.getpid()}"  # several processes may be at it
        partial.write_text(joined(parts), encoding="utf-8")
        partial.replace(sweep / SHARED / name)
