"""`python -m gradlab.fix FOLDER`: the smallest change that cures a failed run, proven."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

from gradlab.base.command import INTERRUPTED, Parser, exit_code, quoted
from gradlab.base.errors import Usage
from gradlab.base.json_lines import write_json
from gradlab.base.option import require
from gradlab.runs.outcome_class import HEALTHY
from gradlab.runs.record import RunRecord
from gradlab.runs.trust import confirm, refuse_links

RUNS, SEEDS = 4.0, 2
"""What --runs and --seeds are without being given."""
DESCRIPTION = """\
Finds the smallest change of the configuration that cures a failed run: candidates from what the run measured, run under
its data and seed; then shrunk as far as it still cures, and confirmed under further seeds. Writes fix.json, report.html
and the runs into a folder beside the run's. Given again, it goes on where it was."""
EPILOG = "Exit code: 0 a proven cure, 1 none found, 2 the command was wrong, 130 interrupted."


Run = Callable[[list[str]], int]
"""Runs the arguments of `python -m gradlab`; returns the exit code."""


def main(run: Run, arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    from gradlab.base.lazy import lazy_import

    if "torch" not in sys.modules:
        lazy_import("torch")  # a wrong command is refused without
    return exit_code(partial(work, run), arguments)


def work(run: Run, arguments: list[str]) -> int:
    p = Parser("python -m gradlab.fix", description=DESCRIPTION, epilog=EPILOG)
    p.add_argument("folder", type=Path, metavar="FOLDER", help="the folder of a run that failed")
    p.add_argument("--runs", type=float, default=RUNS, metavar="N", help="finding a cure costs at most N full runs (4)")
    p.add_argument("--seconds", type=float, metavar="S", help="begin nothing after S seconds")
    p.add_argument("--seeds", type=int, default=SEEDS, metavar="N", help="confirm under N further seeds (2)")
    p.add_argument("--list", action="store_true", help="print what would be tried, and run nothing")
    p.add_argument("--trust", action="store_true", help="run what a folder from elsewhere names")
    args = p.parse_args(arguments)
    require(math.isfinite(args.runs) and args.runs >= 1, "--runs", args.runs, ">= 1")
    require(args.seconds is None or 0 < args.seconds < math.inf, "--seconds", args.seconds, "> 0")
    require(1 <= args.seeds <= 100, "--seeds", args.seeds, "in [1, 100]")
    if "RANK" in os.environ:
        raise Usage("python -m gradlab.fix: not under torchrun; it runs each trial in one process")
    return fix(run, args.folder, args.runs, args.seconds, args.seeds, args.list, args.trust)


def fix(
    run: Run,
    folder: Path,
    runs: float,
    seconds: float | None,
    seeds: int,
    only_list: bool = False,
    trusted: bool = False,
) -> int:
    """Search; returns the exit code."""
    from gradlab.config.schema import to_config
    from gradlab.runs.replay import recomposed
    from gradlab.sweep.search import fix_plan, fix_report

    record = RunRecord.at(folder, "metrics.jsonl", "diagnosis.json")
    fix_plan.check(record)
    record.check(".hydra/overrides.yaml", ".hydra/hydra.yaml")
    confirm("FOLDER", folder, record.typed, record.config_dirs, trusted)
    sys.path.insert(0, os.getcwd())  # a user's own modules
    place = fix_plan.place(record)
    plan, code = fix_plan.make(record, to_config(recomposed(folder)))
    before = fix_plan.kept(place).get("plan")
    if before:
        plan = fix_plan.from_dict(before)  # so that what was tried is found again
    known = {*record.typed}
    more = [o for c in plan.changes for o in c.overrides] + [*plan.overrides]  # from diagnosis.json and fix.json
    confirm("FOLDER", folder, [o for o in more if o not in known], (), trusted, unmarked=True)
    plan.budget, plan.seeds = runs, seeds
    print(*fix_report.estimate(plan, fix_plan.seconds(record, plan)), sep="\n", flush=True)
    if only_list:
        tries = [f"  {' '.join(c.overrides)}   # {c.why}" for c in plan.changes]
        print(*tries, *(f"  in your code: {t.lines}   # {t.why}" for t in code), sep="\n")
        return 0
    if not plan.changes:
        print("nothing in its configuration would cure it", *(f"  in your code: {t.lines}" for t in code), sep="\n")
        return 1
    place.mkdir(parents=True, exist_ok=True)
    refuse_links("FOLDER", place)
    content = {"run": str(folder.absolute()), "plan": asdict(plan), "code": [vars(t) for t in code]}
    write_json(place / fix_plan.NAME, content)
    ended = run(command(record, plan.overrides, place, seconds))
    if ended in (2, INTERRUPTED):
        return ended
    return 0 if fix_plan.kept(place).get("proven") else 1


def after_run(run: Run, folder: Path, code: int) -> int:
    """With `fix=true`: fix a run that has ended, if it is unhealthy; code: its exit code."""
    if RunRecord(folder).verdict in (None, "interrupted", *HEALTHY):
        return code
    return fix(run, folder, RUNS, None, SEEDS)


def command(run: RunRecord, overrides: tuple[str, ...], place: Path, seconds: float | None) -> list[str]:
    """The arguments of `python -m gradlab` that search."""
    name = (run.hydra.get("job") or {}).get("config_name") or "config"
    flags = ["--multirun", f"--config-name={name}", *(f"--config-dir={path}" for path in run.config_dirs)]
    more = [] if seconds is None else [f"hydra.sweeper.seconds={seconds}"]
    sweeper = ["hydra/sweeper=fix", "hydra/launcher=vectorized", f"hydra.sweep.dir={quoted(place)}", *more]
    return [*flags, *overrides, *sweeper]
