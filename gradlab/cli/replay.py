"""`python -m gradlab.replay FOLDER`: the update that ended a run, run again, operation by operation."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gradlab.base.command import Parser, exit_code
from gradlab.base.option import require
from gradlab.runs import replay as crash
from gradlab.runs.record import RunRecord
from gradlab.runs.trust import confirm, refuse_links

DESCRIPTION = """\
Runs the failed update of a run again, forward and backward, and names the first tensor that is not finite, with the
ranges of what went into it and the modules before it. Reads FOLDER/crash.pt and the run's configuration; writes
FOLDER/replay.json and nothing else."""
EPILOG = "Exit code: 0 the failure was found again, 1 the replayed update is finite, 2 the command was wrong."


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    return exit_code(replay, arguments)


def replay(arguments: list[str]) -> int:
    p = Parser("python -m gradlab.replay", description=DESCRIPTION, epilog=EPILOG)
    p.add_argument("folder", type=Path, metavar="FOLDER", help="the folder of a run that failed")
    about = (
        "look for the first output or gradient beyond this, finite or not; without it, for what its type cannot hold"
    )
    p.add_argument("--max", type=float, default=None, metavar="NUMBER", help=about)
    p.add_argument("--all", action="store_true", help="show every module, not only the last ones before the failure")
    p.add_argument("--trust", action="store_true", help="run what a folder from elsewhere names")
    args = p.parse_args(arguments)
    require(args.max is None or args.max > 0, "--max", args.max, "> 0")
    crash.check_folder(args.folder)
    record = RunRecord(args.folder)
    record.check(".hydra/overrides.yaml", ".hydra/hydra.yaml")
    refuse_links("FOLDER", args.folder)
    confirm("FOLDER", args.folder, record.typed, record.config_dirs, args.trust)
    sys.path.insert(0, os.getcwd())  # a user's own modules
    return crash.run(args.folder, args.max, args.all)
