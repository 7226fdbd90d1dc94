"""What `python -m gradlab.report` does: which page, of which folders."""

from __future__ import annotations

import os
from pathlib import Path

from gradlab.base.command import Parser, exit_code
from gradlab.base.errors import Usage
from gradlab.base.option import Invalid, require
from gradlab.base.visible import one_line
from gradlab.report.pages.run_page import PARTS, began
from gradlab.report.wandb import report as wandb_report
from gradlab.runs.folder_files import reading
from gradlab.runs.record import RunRecord
from gradlab.runs.sweep_record import SweepRecord
from gradlab.runs.trust import refuse_links

DESCRIPTION = """\
Pages for a browser, without a network. Of one run: its report.html, made again. Of a sweep: its report.html.
Of several runs (a sweep among them stands for its jobs): one page with their curves over each other, their verdicts,
and the fields in which their configurations differ."""
EPILOG = "Exit code: 0 written, 2 the command was wrong. Ctrl-C ends --serve."
COMPARED = 60
"""Most runs whose curves can be distinguished on one page."""


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    from gradlab.base.lazy import lazy_import

    lazy_import("torch")  # nothing here needs it
    return exit_code(report, arguments)


def parser() -> Parser:
    p = Parser("python -m gradlab.report", description=DESCRIPTION, epilog=EPILOG)
    p.add_argument("folders", type=Path, nargs="*", metavar="FOLDER", help="the folder of a run or of a sweep")
    p.add_argument("--figures", action="store_true", help="draw figures/*.png and *.svg too, for papers")
    text = "the page of several runs (comparison.html)"
    p.add_argument("-o", "--output", type=Path, metavar="FILE", help=text)
    p.add_argument("--serve", action="store_true", help="follow a run that is running, at an address of this machine")
    p.add_argument("--port", type=int, metavar="N", help="of --serve (8080, or any that is free)")
    wandb_report.add_arguments(p)
    return p


def report(arguments: list[str]) -> int:
    args = parser().parse_args(arguments)
    require(args.port is None or 0 <= args.port < 65536, "--port", args.port, "in [0, 65536)")
    if args.port is not None and not args.serve:
        raise Usage("--port: is of --serve")
    if wandb_report.asked(args):
        return wandb_report.report(args)
    if not args.folders:
        raise Usage("FOLDER: the folder of a run or of a sweep is needed; see python -m gradlab.report --help")
    if args.serve:
        return follow(args.folders, args.port, args.figures or args.output)
    kinds = {folder: kind(folder) for folder in args.folders}
    if len(args.folders) > 1:
        with reading(Path(", ".join(map(str, args.folders)))):
            return several(args.folders, args.output or Path("comparison.html"), args.figures)
    if args.output:
        raise Usage("--output: is of several runs; the page of one stands in its folder")
    folder: Path = args.folders[0]
    refuse_links("FOLDER", folder)
    with reading(folder):
        return of_sweep(folder, args.figures) if kinds[folder] == "sweep" else of_run(folder, args.figures)


def kind(folder: Path) -> str:
    """run or sweep; `Invalid` where a folder is neither."""
    if any((folder / name).is_file() for name in ("multirun.yaml", "results.csv")):
        return "sweep"
    RunRecord.at(folder, *PARTS, kinds="of a run or of a sweep")
    return "run"


def of_run(folder: Path, draws: bool) -> int:
    from gradlab.report.pages import run_page

    print(one_line(str(run_page.write(folder))))
    if draws:
        from gradlab.report import figures

        print(*(one_line(str(file)) for file in figures.of_run(folder)), sep="\n")
    return 0


def of_sweep(folder: Path, draws: bool) -> int:
    from gradlab.report.pages import run_page, sweep_page

    if draws:
        raise Usage("--figures: is of runs; python -m gradlab.map draws those of a sweep")
    run_page.complete(job.path for job in SweepRecord(folder).jobs)
    print(one_line(str(sweep_page.write(folder))))
    return 0


def several(folders: list[Path], file: Path, draws: bool) -> int:
    from gradlab.report.pages import comparison_page

    every = [path for folder in folders for path in paths_of(folder)]
    runs = list(dict.fromkeys(filter(began, every)))
    require(len(runs) <= COMPARED, "FOLDER", f"{len(runs)} runs", f"at most {COMPARED} runs on one page")
    if file.is_dir():
        file = file / "comparison.html"
    print(one_line(str(comparison_page.write(runs, file))))
    if draws:
        from gradlab.report import figures

        print(*(one_line(str(drawn)) for drawn in figures.of_several(runs, file.with_suffix(""))), sep="\n")
    return 0


def paths_of(folder: Path) -> list[Path]:
    """The folder of a run, or those of a sweep's jobs."""
    return [job.path for job in SweepRecord(folder).jobs] if kind(folder) == "sweep" else [folder]


def follow(folders: list[Path], port: int | None, other: object) -> int:
    from gradlab.report.pages.live_page import serve

    if len(folders) > 1 or other:
        raise Usage("--serve: follows one run, and writes nothing")
    folder = folders[0]
    if not (folder / ".hydra").is_dir() and kind(folder) == "sweep":
        raise Invalid("FOLDER", folder, f"is a sweep's; --serve follows one of its jobs, such as {folder / '0'}")
    return serve(Path(os.path.abspath(folder)), port)
