"""`python -m gradlab.show FOLDER`: a run's verdict and its curves, in the terminal."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import Any

from gradlab.base.command import Parser, exit_code
from gradlab.base.lazy import lazy_import
from gradlab.base.option import require
from gradlab.base.visible import visible
from gradlab.runs.folder_files import reading
from gradlab.runs.record import RunRecord

DESCRIPTION = """\
Shows the summary of a run, and its curves: the loss with its evaluations, the gradient's norm before clipping with the
threshold, the loss scale, the learning rate; x marks updates that were skipped, ! values that are not finite. Writes
nothing."""
STYLES = {"curve": "cyan", "level": "yellow", "point": "bold magenta", "mark": "bold red", "label": "dim"}
SECONDS = 1.0
"""Between two drawings of a run that is followed."""


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    return exit_code(work, arguments)


def work(arguments: list[str]) -> int:
    p = Parser("python -m gradlab.show", description=DESCRIPTION)
    p.add_argument("folder", type=Path, metavar="FOLDER", help="the folder of a run")
    p.add_argument(
        "--layers", action="store_true", help="the norm of every layer's gradient, in the order of execution"
    )
    p.add_argument("--at", type=int, metavar="N", help="at this update, with --layers (the last record that is finite)")
    p.add_argument("--height", type=int, default=8, metavar="LINES", help="of each curve (8)")
    p.add_argument("--follow", action="store_true", help="draw again while the run is running")
    args = p.parse_args(arguments)
    require(args.height >= 2, "--height", args.height, ">= 2")
    require(args.at is None or args.layers, "--at", args.at, "given with --layers")
    lazy_import("torch")
    from gradlab.runs.record import STATES
    from gradlab.runs.summary import print_panel, summarise

    with reading(args.folder):
        run = read(args.folder)
        if args.follow and sys.stdout.isatty():
            follow(args)
            run = read(args.folder)
        summary, curves = summarise(run), drawn(run, args, shutil.get_terminal_size().columns)
        print_panel(f"{'verdict: ' * (run.state not in STATES)}{run.state}", summary.lines, summary.good)
        out(curves)
    return 0


def read(folder: Path) -> RunRecord:
    """The run in a folder. Raises `Invalid` where there is none, or its curves cannot be read."""
    run = RunRecord.at(folder, ".hydra", "metrics.jsonl", "diagnosis.json")
    run.check("metrics.jsonl")
    return run


def follow(args: Any) -> None:
    """Until the run ends, or Ctrl-C."""
    from rich.console import Console
    from rich.live import Live

    from gradlab.report.terminal.charts import plots
    from gradlab.runs.record import RUNNING
    from gradlab.runs.summary import summarise

    console = Console(highlight=False)
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while (run := read(args.folder)).state == RUNNING:
                charts = plots(run)
                over = 4 + sum(1 + sum(map(bool, chart.marks.values())) for chart in charts)  # titles, marks
                args.height = max(2, (console.height - over) // max(len(charts), 1))
                lines = [[(f"{args.folder}: {summarise(run).lines[1]}", "label")], *drawn(run, args, console.width)]
                live.update(styled(lines[: console.height]), refresh=True)
                time.sleep(SECONDS)
    except KeyboardInterrupt:
        pass


def drawn(run: RunRecord, args: Any, wide: int) -> list[Any]:
    """Lines of (text, style)."""
    from gradlab.report.terminal import profile
    from gradlab.report.terminal.braille import draw
    from gradlab.report.terminal.charts import plots

    ascii = not can_draw()
    if args.layers:
        return profile.lines(run, args.at, wide, ascii)
    charts = plots(run)
    if not charts:
        return []
    attempts = [line["attempt"] for line in run.updates]
    span = (attempts[0], attempts[-1])
    lines: list[Any] = []
    for chart in charts:
        lines += [[(chart.title, "bold")], *draw(chart, wide, args.height, span, ascii)]
    first, last = (f"{v}" for v in span)
    middle = "update (skipped ones counted)"
    gap = wide - 10 - len(first) - len(last) - len(middle)
    foot = f"{'':10}{first}{middle:^{gap + len(middle)}}{last}" if gap > 2 else f"{'':10}{first} to {last}"
    return [*lines, [(foot, "label")]]


def can_draw() -> bool:
    """Whether the output can hold braille."""
    try:
        "⠿╌●".encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def styled(lines: list[Any]) -> Any:
    from rich.text import Text

    text = Text(no_wrap=True, end="")
    for line in lines:
        for part, style in line:
            text.append(part, STYLES.get(style, style))
        text.append("\n")
    return text


def out(lines: list[Any]) -> None:
    """In colours in a terminal, unless NO_COLOR is set."""
    lines = [[(visible(part), style) for part, style in line] for line in lines]
    if not sys.stdout.isatty():
        for line in lines:
            text = "".join(part for part, _ in line).rstrip()
            print(text if can_draw() else text.replace("●", "o").replace("╌", "-"))
        return
    from rich.console import Console

    Console(highlight=False, soft_wrap=True).print(styled(lines), end="")
