"""The command line of `python -m gradlab.audit`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import NoReturn

from gradlab.audit import output
from gradlab.audit.process_pool import audit_files, merged
from gradlab.audit.result import FileResult
from gradlab.audit.rules.registry import load_rules
from gradlab.audit.selection import checked, choose, codes, one, reports_unreadable
from gradlab.audit.source.files import find
from gradlab.audit.source.settings import UsageError, exclusion, settings
from gradlab.base.visible import printable
from gradlab.codes import CODES, SEVERITIES, UNREADABLE


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see python -m gradlab.audit --help")


def parser() -> Parser:
    made = Parser(
        prog="python -m gradlab.audit",
        usage="python -m gradlab.audit [options] PATH...",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Finds mistakes with gradients in training scripts. Reads them, and runs nothing.",
        epilog="Codes are GL101, GL1 for all that begin so, ALL, or a rule's name.\n"
        "`# gradlab: ignore[GL101]` at the end of a line silences it.\n"
        "Settings: [tool.gradlab.audit] in the audited project's pyproject.toml.\n"
        "Exit codes: 0 nothing found, 1 findings, 2 the command was wrong.",
    )
    made.add_argument("paths", nargs="*", metavar="PATH", help="files, notebooks, folders")
    which = made.add_argument_group("which findings")
    which.add_argument("--select", action="append", metavar="CODES", help="only these rules, separated by commas")
    which.add_argument("--ignore", action="append", metavar="CODES", help="not these rules")
    which.add_argument("--severity", choices=SEVERITIES, help="the lowest severity (default: advice, which is all)")
    which.add_argument(
        "--force-exclude", action="store_true", help="leave out what the settings exclude even where it is named here"
    )
    how = made.add_argument_group("how they are reported")
    how.add_argument("--format", choices=("text", "json", "sarif", "github"), default="text", help="(default: text)")
    how.add_argument("--verbose", action="store_true", help="also which loops were followed, and what is undecided")
    fix = made.add_argument_group("fixing")
    fix.add_argument("--diff", action="store_true", help="show what --fix would change; change nothing")
    fix.add_argument("--fix", action="store_true", help="show it and write it; then the findings that are left")
    about = made.add_argument_group("the rules")
    about.add_argument("--list", action="store_true", help="all of them")
    about.add_argument("--explain", metavar="CODE", help="why a rule exists, and what to write instead")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    printable()
    try:
        code = run(parser().parse_args(arguments))
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (UsageError, OSError) as error:
        print(f"gradlab.audit: {error}", file=sys.stderr)
    return 2


def run(args: argparse.Namespace) -> int:
    known = load_rules()
    if args.explain:
        print(output.explanation(CODES[one(args.explain)]))
        return 0
    if args.list:
        print("\n".join(output.listed(code, code.code in {*known, UNREADABLE}) for code in CODES.values()))
        return 0
    paths = checked_paths(args)
    chosen = checked(settings(paths[0] if paths[0].is_dir() else paths[0].parent))
    select, ignore = codes(args.select) or chosen.select, [*codes(args.ignore), *chosen.ignore]
    selected = choose(known, select, ignore, args.severity or chosen.severity)
    excluded = exclusion(chosen.exclude, chosen.path.parent if chosen.path is not None else Path())
    files = list(find(paths, excluded, args.force_exclude, warn))
    if not files and not args.force_exclude:
        but = " that the settings do not exclude" if chosen.exclude else ""
        warn(f"no Python file in {', '.join(args.paths)}{but}")
    if args.diff or args.fix:
        from gradlab.audit.fixes.file_fix import fix_files

        out = sys.stdout if args.diff or args.format == "text" else sys.stderr
        done = fix_files(files, selected, args.fix and not args.diff, out, output.coloured(out))
        if args.diff:
            return 1 if done else 0
    results = audit_files(files, list(selected))
    findings = merged(results, paths, files, excluded)
    if not reports_unreadable(ignore):
        findings = [f for f in findings if f.code != UNREADABLE]
    if text := output.FORMATS[args.format](findings, output.coloured(sys.stdout)):
        print(text)
    report_coverage(results, args.verbose)
    return 1 if findings else 0


def checked_paths(args: argparse.Namespace) -> list[Path]:
    """The paths. Raises UsageError for a path that is no file and no folder."""
    if not args.paths:
        raise UsageError("no path given; see python -m gradlab.audit --help")
    if args.diff and args.format != "text":
        raise UsageError(f"--diff shows a diff, and no --format {args.format}")
    paths = [Path(p) for p in args.paths]
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path}: no such file or folder")
        if not path.is_file() and not path.is_dir():
            raise UsageError(f"{path}: neither a file nor a folder")
    return paths


def warn(message: object) -> None:
    print(f"gradlab.audit: {message}", file=sys.stderr)


def report_coverage(results: list[FileResult], verbose: bool) -> None:
    """Print what was understood, and what was not."""
    for r in results:
        for place, text in r.ineffective:
            print(f"{r.source.path}:{place}: {text}", file=sys.stderr)
    training = [r for r in results if r.loops or r.lost]
    lost = [r.source.path for r in training if not r.loops]
    if verbose:
        undecided = [
            f"{r.source.path}:{r.source.place(line)}: {text}"
            for r in results
            for line, text in sorted(dict.fromkeys(r.undecided))
        ]
        followed = [f"{r.source.path}: {loops(r)}" for r in training]
        print("\n".join(["", *followed, f"Undecided: {len(undecided)}", *undecided]), file=sys.stderr)
    elif lost:
        what = f"{lost[0]} has" if len(lost) == 1 else f"{len(lost)} files have"
        print(f"{what} a backward(), but no training loop that could be followed; see --verbose", file=sys.stderr)


def loops(result: FileResult) -> str:
    lines = list(dict.fromkeys(result.loops))
    text = f"{len(lines)} loop{'' if len(lines) == 1 else 's'} followed"
    return text + (f" ({'line ' * lines[0][0].isdigit()}{', '.join(lines)})" if lines else "")


def script() -> NoReturn:
    """`python -m gradlab.audit` and `gradlab-audit`."""
    sys.setrecursionlimit(4000)  # a long chain of `elif`, or of `+`, is a deep tree
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
