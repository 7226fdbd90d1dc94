"""`python -m gradlab.replay FOLDER`: the update that ended a run, once more, with a look at every module."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from gradlab import errors
from gradlab.option import Invalid

DESCRIPTION = """\
Runs the failed update of a run again, forward and backward, and names the first tensor that is not finite, with the
ranges of what went into it and the modules before it. Reads FOLDER/crash.pt and the run's configuration; writes
FOLDER/replay.json and nothing else."""
EPILOG = "Exit code: 0 the failure was found again, 1 the replayed update is finite, 2 the command was wrong."


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser("python -m gradlab.replay", description=DESCRIPTION, epilog=EPILOG)
    p.add_argument("folder", type=Path, help="the folder of a run that failed")
    says = "look for the first output or gradient beyond this, finite or not; without it, for what its type cannot hold"
    p.add_argument("--max", type=float, default=None, metavar="NUMBER", help=says)
    p.add_argument("--all", action="store_true", help="show every module, not only the last ones before the failure")
    return p


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    args = parser().parse_args(arguments)
    sys.path.insert(0, os.getcwd())  # a user's own modules
    try:
        if args.max is not None and not args.max > 0:
            raise Invalid("--max", args.max, "must be > 0")
        from gradlab.diagnosis.crash import check_folder

        check_folder(args.folder)  # before PyTorch is imported
        from gradlab.diagnosis.crash import run

        return run(args.folder, args.max, args.all)
    except Exception as error:
        message = errors.explain(error)
        if message is None:
            raise
        print(f"gradlab: {message}", file=sys.stderr)
        return errors.exit_code(error)


if __name__ == "__main__":
    sys.exit(main())
