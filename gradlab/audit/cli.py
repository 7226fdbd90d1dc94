"""The command line of `python -m gradlab.audit`."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from pathlib import Path
from typing import NoReturn, TextIO

from gradlab.audit import output, rules
from gradlab.audit.audit import Result, audit
from gradlab.audit.finding import SEVERITIES, Finding
from gradlab.audit.project import Project
from gradlab.audit.settings import Wrong, settings
from gradlab.audit.sources import find, read


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Wrong(f"{message}; see python -m gradlab.audit --help")


def parser() -> Parser:
    made = Parser(
        prog="python -m gradlab.audit",
        description="Finds mistakes with gradients in training scripts; reads them, and runs nothing.",
        epilog="Exit codes: 0 nothing found, 1 findings, 2 the command was wrong. "
        "A line with # gradlab: ignore[CODE] is left alone.",
    )
    made.add_argument("paths", nargs="*", metavar="PATH", help="files, notebooks, folders")
    made.add_argument(
        "--select", action="append", metavar="CODES", help="these rules alone: GL101, or GL1 for all that begin so"
    )
    made.add_argument("--ignore", action="append", metavar="CODES", help="not these")
    made.add_argument("--severity", choices=SEVERITIES, help="from here on (advice: all)")
    made.add_argument("--format", choices=("text", "json", "sarif", "github"), default="text")
    made.add_argument("--explain", metavar="CODE", help="why a rule is there, and what to write instead")
    made.add_argument("--list", action="store_true", help="the rules")
    made.add_argument("--diff", action="store_true", help="show what --fix would change, and change nothing")
    made.add_argument(
        "--fix", action="store_true", help="mend what can be mended safely; the diff is shown, then written"
    )
    made.add_argument("--verbose", action="store_true", help="say too what could not be decided")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    try:
        return work(parser().parse_args(arguments))
    except Wrong as error:
        print(f"gradlab.audit: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def work(args: argparse.Namespace) -> int:
    known = rules.load()
    if args.explain:
        print(output.explained(known[one(args.explain, known)]))
        return 0
    if args.list:
        print("\n".join(f"{r.code}  {r.severity:8} {r.name}" for r in known.values()))
        return 0
    if not args.paths:
        raise Wrong("no path given; see python -m gradlab.audit --help")
    paths = [Path(p) for p in args.paths]
    for path in paths:
        if not path.exists():
            raise Wrong(f"{path}: no such file or folder")
    chosen = settings(paths[0] if paths[0].is_dir() else paths[0].parent)
    severity = args.severity or chosen.severity
    if severity not in SEVERITIES:
        raise Wrong(f"severity is {severity!r}, allowed are {', '.join(SEVERITIES)}")
    selected = choose(known, codes(args.select) or chosen.select, [*codes(args.ignore), *chosen.ignore], severity)
    files = list(find(paths, chosen.exclude))
    if args.diff or args.fix:
        from gradlab.audit.fixes.command import mend

        out = sys.stdout if args.diff or args.format == "text" else sys.stderr
        done = mend(files, selected, args.fix and not args.diff, out, coloured(out))
        if args.diff:
            return 1 if done else 0
    findings: list[Finding] = []
    undecided: list[str] = []
    followed: list[str] = []
    lost: list[Path] = []
    project = Project()
    for path in files:
        result = audit(read(path), project, selected)
        findings += result.findings
        project.forget()
        undecided += [f"{path}:{line}: {text}" for line, text in sorted(dict.fromkeys(result.undecided))]
        followed += [f"{path}: {heard(result)}"] if result.loops or result.lost else []
        lost += [path] if result.lost and not result.loops else []
    say(args.format, findings, known)
    if args.verbose:
        print("\n".join(["", *followed, f"Undecided: {len(undecided)}", *undecided]), file=sys.stderr)
    elif lost:
        what = f"{lost[0]} has" if len(lost) == 1 else f"{len(lost)} files have"
        print(f"{what} a backward(), but no training loop that could be followed; see --verbose", file=sys.stderr)
    return 1 if findings else 0


def heard(result: Result) -> str:
    lines = list(dict.fromkeys(result.loops))
    text = f"{len(lines)} loop{'' if len(lines) == 1 else 's'} followed"
    return text + (f" (line {', '.join(lines)})" if lines else "")


def coloured(out: TextIO) -> bool:
    return out.isatty() and not os.environ.get("NO_COLOR")


def say(form: str, findings: list[Finding], known: dict[str, rules.Rule]) -> None:
    if form == "text":
        print(output.text(findings, known, coloured(sys.stdout)))
        return
    said = {"json": output.as_json, "sarif": output.sarif, "github": output.github}[form](findings, known)
    if said:
        print(said)


def codes(given: list[str] | None) -> list[str]:
    return [code.strip() for text in given or [] for code in text.split(",") if code.strip()]


def one(code: str, known: dict[str, rules.Rule]) -> str:
    by_name = {rule.name: rule.code for rule in known.values()}
    found = code.upper() if code.upper() in known else by_name.get(code)
    if found is None:
        close = difflib.get_close_matches(code, [*known, *by_name], n=1)
        raise Wrong(f"no rule {code!r}" + (f" (did you mean {close[0]}?)" if close else "; --list shows them"))
    return found


def choose(known: dict[str, rules.Rule], select: list[str], ignore: list[str], severity: str) -> dict[str, rules.Rule]:
    for code in [*select, *ignore]:
        if code != "ALL" and not any(name.startswith(code) for name in [*known, "GL000"]):
            one(code, known)
    taken = {
        c: r
        for c, r in known.items()
        if (r.default if not select else any(c.startswith(s) or s == "ALL" for s in select))
    }
    lowest = SEVERITIES.index(severity)
    return {
        c: r
        for c, r in taken.items()
        if not any(c.startswith(i) for i in ignore) and SEVERITIES.index(r.severity) >= lowest
    }
