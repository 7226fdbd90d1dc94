"""`resume=FOLDER`: the arguments of a run, or of a sweep, that began before."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from gradlab.base.command import key, quoted, text
from gradlab.base.fields import dotted
from gradlab.base.option import Invalid
from gradlab.cli.arguments import parse
from gradlab.cli.session import Resumed, Session
from gradlab.runs.record import RunRecord
from gradlab.runs.trust import confirm, refuse_links, sweep_named

FREE = {"resume", "story"}
"""Fields that decide nothing."""


def resumed(args: argparse.Namespace, session: Session) -> None:
    """Put the stored overrides before those given now: with `resume=FOLDER`, or where torchrun starts ranks again."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from gradlab.base import restarts

    if (start := restarts.start()) is not None and (left := start.left()) is not None:
        again(args, left)
    given = [o for o in args.overrides if key(o) == "resume"]
    if not given or given[-1].partition("=")[2] in ("null", ""):
        return
    folder = Path(str(OverridesParser.create().parse_override(given[-1]).value()))
    if (folder / "multirun.yaml").is_file():
        resume_sweep(folder, args)
    else:
        resume_run(folder, args, session)


def again(args: argparse.Namespace, folder: Path) -> None:
    """Resume what ranks before these began, which holds what was typed."""
    if os.environ.get("RANK") == "0":
        print(f"gradlab: torchrun has started the ranks again: {folder} goes on", file=sys.stderr)
    args.overrides, args.multirun, args.trust = [f"resume={quoted(folder)}"], False, True


def resume_run(folder: Path, args: argparse.Namespace, session: Session) -> None:
    """Run the configuration of a run again, in its folder."""
    if args.multirun:
        raise Invalid("resume", folder, "one run at a time, without --multirun")
    run = RunRecord(folder)
    if not (folder / ".hydra" / "overrides.yaml").is_file():
        must = "must be the folder of a run or of a sweep (it holds no .hydra/overrides.yaml and no multirun.yaml)"
        raise Invalid("resume", folder, must)
    run.check(".hydra/overrides.yaml", field="resume")  # Hydra writes hydra.yaml anew, and a kill may cut it short
    anew = not (folder / "checkpoint.pt").is_file()
    if anew and (folder / "diagnosis.json").is_file():
        raise Invalid("resume", folder, "holds no checkpoint.pt to continue from")
    if anew and not run.fields:
        raise Invalid("resume", folder, "holds no checkpoint.pt and no .hydra/config.yaml that could be read")
    refuse_links("resume", folder)
    confirm("resume", folder, run.typed, run.config_dirs, args.trust)
    given = {key(o) for o in args.overrides}
    files = {path: path.read_bytes() for path in (folder / ".hydra").iterdir() if path.is_file()}
    session.resumed = Resumed(files, given, run.config if anew else None)
    if anew:
        args.overrides = [o for o in args.overrides if key(o) != "resume"]
    before = [o for o in run.typed if not given & {key(o), key(o).split(".")[0]}]
    args.overrides = [*before, *args.overrides, f"hydra.run.dir={quoted(folder)}", "hydra.mode=RUN"]
    args.config_dir = args.config_dir or next(reversed(run.config_dirs), None)
    wait_for_ranks()


def check_unchanged(folder: Path, before: dict[str, Any], now: dict[str, Any], given: set[str]) -> None:
    """Raise `Invalid` where a resumed run's configuration is another, though nothing was given that changes it."""
    if given & {"remedy", "experiment"}:  # which may change any field
        return
    known, was = dotted(before), []
    for name, value in dotted(now).items():
        above = {name[:i] for i, letter in enumerate(f"{name}.") if letter == "."}
        if known.get(name, value) != value and "${" not in str(known[name]) and not given & above and name not in FREE:
            was.append(f"{name}={text(known[name])}")
    if was:
        why = f"had {' '.join(was)}, and its .hydra/overrides.yaml says otherwise: type what it shall have now"
        raise Invalid("resume", folder, why)


def resume_sweep(folder: Path, args: argparse.Namespace) -> None:
    """Run the unfinished jobs of a sweep; what is given now may change only where they run."""
    from gradlab.runs.sweep_record import SweepRecord
    from gradlab.sweep.resume import original_command

    given = [o for o in args.overrides if key(o) != "resume"]
    flags, before, after = original_command(folder, given)
    refuse_links("resume", folder)
    confirm("resume", folder, *sweep_named(SweepRecord(folder).hydra), args.trust)
    wait_for_ranks()
    began = parse(flags)
    args.overrides, args.multirun = [*before, *given, *after], True
    args.config_name = args.config_name or began.config_name
    args.config_dir = args.config_dir or began.config_dir


def wait_for_ranks() -> None:
    """Wait until all ranks have read what rank 0 then writes anew."""
    from gradlab.base.distributed import under_torchrun, world

    if under_torchrun():
        world().barrier()
