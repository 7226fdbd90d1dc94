"""The command line of `python -m gradlab.audit`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import NoReturn, TextIO

from gradlab.audit import output, rules
from gradlab.audit.finding import Finding
from gradlab.audit.process_pool import merged, over
from gradlab.audit.result import Result
from gradlab.audit.selection import checked, choose, codes, one, reading
from gradlab.audit.source.exclusion import excluding
from gradlab.audit.source.files import find
from gradlab.audit.source.settings import Wrong, settings
from gradlab.codes import CODES, SEVERITIES, UNREADABLE, Code, explain


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Wrong(f"{message}; see python -m gradlab.audit --help")


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
    which.add_argument("--select", action="append", metavar="CODES", help="these rules alone, parted by commas")
    which.add_argument("--ignore", action="append", metavar="CODES", help="not these")
    which.add_argument("--severity", choices=SEVERITIES, help="the least to be said (default: advice, which is all)")
    which.add_argument(
        "--force-exclude", action="store_true", help="leave out what the settings exclude even where it is named here"
    )
    how = made.add_argument_group("what is said of them")
    how.add_argument("--format", choices=("text", "json", "sarif", "github"), default="text", help="(default: text)")
    how.add_argument("--verbose", action="store_true", help="also which loops were followed, and what is undecided")
    mend = made.add_argument_group("mending")
    mend.add_argument("--diff", action="store_true", help="show what --fix would change; change nothing")
    mend.add_argument("--fix", action="store_true", help="show it and write it; then the findings that are left")
    rules_ = made.add_argument_group("the rules")
    rules_.add_argument("--list", action="store_true", help="all of them")
    rules_.add_argument("--explain", metavar="CODE", help="why one is there, and what to write instead")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    for out in (sys.stdout, sys.stderr):
        if hasattr(out, "reconfigure"):
            out.reconfigure(errors="backslashreplace")  # a path may hold what the terminal cannot show
    try:
        code = work(parser().parse_args(arguments))
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Wrong as error:
        print(f"gradlab.audit: {error}", file=sys.stderr)
    except OSError as error:
        print(f"gradlab.audit: {error}", file=sys.stderr)
    return 2


def work(args: argparse.Namespace) -> int:
    known = rules.load()
    if args.explain:
        print(told(CODES[one(args.explain)]))
        return 0
    if args.list:
        print("\n".join(listed(code, code.code in known or code.code == UNREADABLE) for code in CODES.values()))
        return 0
    if not args.paths:
        raise Wrong("no path given; see python -m gradlab.audit --help")
    if args.diff and args.format != "text":
        raise Wrong(f"--diff shows a diff, and no --format {args.format}")
    paths = [Path(p) for p in args.paths]
    for path in paths:
        if not path.exists():
            raise Wrong(f"{path}: no such file or folder")
        if not path.is_file() and not path.is_dir():
            raise Wrong(f"{path}: neither a file nor a folder")
    chosen = checked(settings(paths[0] if paths[0].is_dir() else paths[0].parent))
    select, ignore = codes(args.select) or chosen.select, [*codes(args.ignore), *chosen.ignore]
    selected = choose(known, select, ignore, args.severity or chosen.severity)
    excluded = excluding(chosen.exclude, chosen.path.parent if chosen.path is not None else Path())
    files = list(
        find(paths, excluded, args.force_exclude, lambda error: print(f"gradlab.audit: {error}", file=sys.stderr))
    )
    if not files and not args.force_exclude:
        but = " that the settings do not exclude" if chosen.exclude else ""
        print(f"gradlab.audit: no Python file in {', '.join(args.paths)}{but}", file=sys.stderr)
    if args.diff or args.fix:
        from gradlab.audit.fixes.fix_command import mend

        out = sys.stdout if args.diff or args.format == "text" else sys.stderr
        done = mend(files, selected, args.fix and not args.diff, out, coloured(out))
        if args.diff:
            return 1 if done else 0
    results = over(files, list(selected))
    findings = merged(results, paths, files, excluded)
    if not reading(ignore):
        findings = [f for f in findings if f.code != UNREADABLE]
    say(args.format, findings)
    hear(results, args.verbose)
    return 1 if findings else 0


def hear(results: list[Result], verbose: bool) -> None:
    """What was understood, and what was not."""
    for r in results:
        for place, text in r.unheeded:
            print(f"{r.source.path}:{place}: {text}", file=sys.stderr)
    heard = [r for r in results if r.loops or r.lost]
    lost = [r.source.path for r in heard if not r.loops]
    if verbose:
        undecided = [
            f"{r.source.path}:{r.source.place(line)}: {text}"
            for r in results
            for line, text in sorted(dict.fromkeys(r.undecided))
        ]
        followed = [f"{r.source.path}: {loops(r)}" for r in heard]
        print("\n".join(["", *followed, f"Undecided: {len(undecided)}", *undecided]), file=sys.stderr)
    elif lost:
        what = f"{lost[0]} has" if len(lost) == 1 else f"{len(lost)} files have"
        print(f"{what} a backward(), but no training loop that could be followed; see --verbose", file=sys.stderr)


def loops(result: Result) -> str:
    lines = list(dict.fromkeys(result.loops))
    text = f"{len(lines)} loop{'' if len(lines) == 1 else 's'} followed"
    return text + (f" ({'line ' * lines[0][0].isdigit()}{', '.join(lines)})" if lines else "")


def coloured(out: TextIO) -> bool:
    return out is not None and out.isatty() and not os.environ.get("NO_COLOR")


def say(form: str, findings: list[Finding]) -> None:
    if form == "text":
        print(output.text(findings, coloured(sys.stdout)))
        return
    said = {"json": output.as_json, "sarif": output.sarif, "github": output.github}[form](findings)
    if said:
        print(said)


def told(code: Code) -> str:
    from gradlab.audit.fixes import FIXES

    more = "" if code.default else f"\n\nOff unless selected: --select {code.code}."
    return explain(code) + more + ("\n\n--fix mends the plain cases; --diff shows them." if code.code in FIXES else "")


def listed(code: Code, here: bool) -> str:
    """A line of `--list`; here: whether it is found in the text."""
    from gradlab.audit.fixes import FIXES

    more = ("  (--fix)" if code.code in FIXES else "") + ("" if code.default else "  (off unless selected)")
    return f"{code.code}  {code.severity:8} {code.name}{more if here else '  (seen at run time, by gradlab.watch)'}"
