"""`python -m gradlab.list [FOLDER]`: the runs and sweeps below a folder, with their verdicts and key numbers."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradlab.base import table
from gradlab.base.command import Parser, exit_code, key
from gradlab.base.json_lines import plain
from gradlab.base.lazy import lazy_import
from gradlab.base.option import Invalid, require
from gradlab.base.visible import one_line
from gradlab.report.terminal import query
from gradlab.runs.outcome_class import HEALTHY
from gradlab.runs.run_list import Entry, SweepEntry, find
from gradlab.runs.sweep_record import swept

DESCRIPTION = """\
Lists the runs and sweeps below FOLDER, newest first. A sweep is one line: how many of its jobs had which verdict, the
lowest of their losses, the largest of their norms, and sums of updates, skipped ones and seconds; of the folder of a
sweep its jobs are listed. Loss: the median of the last 20 updates, or of a fifth of a short run; max norm: the largest
before clipping.

running: a process is at work there (on file systems that have locks); killed: it ended without a diagnosis."""
CONDITIONS = (query.__doc__ or "").partition("\n\n")[2]
COLUMNS = ("folder", "verdict", "updates", "loss", "eval loss", "max norm", "skipped", "seconds", "when", "overrides")
WORDS = ("folder", "verdict", "overrides")
WIDE = 30
"""Characters of a line of verdicts."""
LEAST = ("verdict", "updates", "loss", "skipped", "eval loss", "max norm", "seconds", "when")
"""Columns that a narrow terminal leaves out, the last first."""
ROOM = 24
"""Characters that the overrides are worth having."""


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    return exit_code(work, arguments)


def parser() -> Parser:
    p = Parser(
        "python -m gradlab.list",
        description=DESCRIPTION,
        epilog=f"conditions:\n{CONDITIONS}\nfields: {', '.join(query.FIELDS)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("folder", type=Path, nargs="?", default=Path("outputs"), metavar="FOLDER", help="(outputs)")
    p.add_argument("--sort", metavar="FIELD", default="time", help="smallest first; times newest first (time)")
    p.add_argument("--reverse", action="store_true", help="the other way round")
    p.add_argument("--filter", metavar="CONDITION", nargs="+", action="extend", default=[], help="all must hold")
    p.add_argument("--limit", metavar="N", type=int, help="at most so many")
    p.add_argument("--jobs", action="store_true", help="every job of every sweep")
    p.add_argument("--json", action="store_true", help="a list of objects, with unrounded numbers")
    return p


def work(arguments: list[str]) -> int:
    args = parser().parse_args(arguments)
    require(args.limit is None or args.limit >= 1, "--limit", args.limit, ">= 1")
    if not args.folder.is_dir():
        raise Invalid("FOLDER", args.folder, "no such folder")
    lazy_import("torch")
    conditions = [query.parse(given) for given in args.filter]
    entries = find(args.folder)
    total = len(entries)
    unfold = args.jobs or (len(entries) == 1 and entries[0].name == ".")
    entries = query.chosen(entries, conditions)
    if unfold:
        entries = [job for entry in entries for job in (swept_first(entry.jobs) if entry.jobs else [entry])]
    if not (unfold and args.sort == "time" and total == 1):  # jobs of one sweep are in their order
        singles = [job for entry in entries for job in (entry.jobs or [entry])]
        entries = query.ordered(entries, query.resolve("--sort", args.sort, singles), args.reverse)
    elif args.reverse:
        entries.reverse()
    shown = entries[: args.limit]
    if args.json:
        print(json.dumps([plain(as_json(entry)) for entry in shown], indent=1, allow_nan=False))
        return 0
    if not shown:
        print(f"no run below {args.folder}" + (f" meets {' and '.join(args.filter)} ({total} there)" if total else ""))
        return 0
    show(shown)
    if len(shown) < (left := len(entries)):
        print(f"({len(shown)} of {left})")
    return 0


def swept_first(jobs: list[Entry]) -> list[Entry]:
    """Jobs whose overrides begin with those that differ between them: there may be no room for the others."""
    names = swept([job.overrides for job in jobs])
    for job in jobs:
        job.overrides.sort(key=lambda o: names.index(key(o)) if key(o) in names else len(names))
    return jobs


def as_json(entry: Entry) -> dict[str, Any]:
    """An entry as `--json` prints it."""
    found = {"folder": str(entry.path), "kind": entry.kind, "verdict": entry.verdict, "time": entry.time}
    found |= {**entry.numbers, "overrides": entry.overrides}
    if isinstance(entry, SweepEntry):
        found |= {"verdict": None, "verdicts": entry.counts, "jobs": len(entry.jobs)}
    return found


def cells(entry: Entry) -> list[str]:
    """An entry as a row of the table."""
    values = entry.numbers

    def short(name: str, form: str = ".4g") -> str:
        return "-" if values.get(name) is None else format(values[name], form)

    planned = values.get("planned")
    updates = short("updates", "d") + (f"/{planned}" if planned and planned != values.get("updates") else "")
    numbers = [short("loss"), short("eval_loss"), short("grad_norm", ".3g"), short("skipped", "d")]
    seconds = values.get("seconds")
    took = "-" if seconds is None else f"{seconds:.1f}" if seconds < 100 else f"{seconds:.0f}"
    return [entry.name, entry.verdict, updates, *numbers, took, entry.when, " ".join(entry.overrides)]


def colour(entry: Entry) -> str:
    """Green if all is healthy, red if something is broken or ended with an error, yellow if nothing is known."""
    codes = {job.numbers.get("exit_code") for job in entry.jobs or [entry]}
    seen = {job.verdict for job in entry.jobs or [entry]}
    if seen <= set(HEALTHY):
        return "green"
    if seen <= {"running", "killed", "pretrained", "does not apply", "interrupted", "not_measured", "too_short"}:
        return "yellow"
    return "red" if seen & {"broken", "error"} or codes - {0} else "default"


def show(entries: Sequence[Entry]) -> None:
    """A table in a terminal, as wide as it is; aligned lines elsewhere."""
    rows = [[one_line(cell) for cell in cells(entry)] for entry in entries]
    if not sys.stdout.isatty():
        print(*table.lines(COLUMNS, rows, WORDS), sep="\n")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    narrow = [[cell[:WIDE] if i == 1 else cell for i, cell in enumerate(row[:-1])] for row in rows]
    kept = table.fitting(COLUMNS[:-1], narrow, LEAST, console.width)
    used = sum(max(map(len, c)) + 2 for c in zip(COLUMNS[:-1], *narrow, strict=True) if c[0] in kept)
    room = console.width - used
    kept += ["overrides"] * (room >= ROOM)
    drawn = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for name in kept:
        side, wraps = "left" if name in WORDS else "right", name == "verdict"
        drawn.add_column(name, justify=side, no_wrap=not wraps, max_width=WIDE if wraps else None)  # type: ignore[arg-type]
    for entry, row in zip(entries, rows, strict=True):
        row[-1] = row[-1] if len(row[-1]) <= room else f"{row[-1][: room - 1]}…"
        styles = {"verdict": colour(entry), "when": "dim", "overrides": "dim"}
        drawn.add_row(*(Text(row[i], style=styles.get(n, "")) for i, n in enumerate(COLUMNS) if n in kept))
    console.print(drawn)
