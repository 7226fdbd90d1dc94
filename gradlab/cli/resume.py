"""`resume=FOLDER`: the arguments of a run, or of a sweep, that began before."""

from __future__ import annotations

import argparse
from pathlib import Path

from gradlab.base.command import key
from gradlab.base.option import Invalid
from gradlab.cli.arguments import parse
from gradlab.cli.session import Session
from gradlab.runs.record import RunRecord


def resumed(args: argparse.Namespace, session: Session) -> None:
    """With `resume=FOLDER`: put the stored overrides before those given now, which overrule them."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    given = [o for o in args.overrides if key(o) == "resume"]
    if not given or given[-1].partition("=")[2] in ("null", ""):
        return
    folder = Path(str(OverridesParser.create().parse_override(given[-1]).value()))
    if (folder / "multirun.yaml").is_file():
        resume_sweep(folder, args)
    else:
        resume_run(folder, args, session)


def resume_run(folder: Path, args: argparse.Namespace, session: Session) -> None:
    """Run the configuration of a run again, in its folder."""
    import yaml

    if args.multirun:
        raise Invalid("resume", folder, "one run at a time, without --multirun")
    stored = folder / ".hydra" / "overrides.yaml"
    if not stored.is_file():
        must = "must be the folder of a run or of a sweep (it holds no .hydra/overrides.yaml and no multirun.yaml)"
        raise Invalid("resume", folder, must)
    if not (folder / "checkpoint.pt").is_file():
        raise Invalid("resume", folder, "holds no checkpoint.pt to continue from")
    session.stored_overrides[stored] = stored.read_text()
    given = {key(o) for o in args.overrides}
    quoted = str(folder).replace("\\", "\\\\").replace("'", "\\'")
    before = yaml.safe_load(session.stored_overrides[stored]) or []
    before = [o for o in before if not given & {key(o), key(o).split(".")[0]}]
    args.overrides = [*before, *args.overrides, f"hydra.run.dir='{quoted}'", "hydra.mode=RUN"]
    args.config_dir = args.config_dir or next(reversed(RunRecord(folder).config_dirs), None)


def resume_sweep(folder: Path, args: argparse.Namespace) -> None:
    """Run the unfinished jobs of a sweep; what is given now may change only where they run."""
    from gradlab.base.distributed import under_torchrun, world
    from gradlab.sweep.resume import original_command

    given = [o for o in args.overrides if key(o) != "resume"]
    flags, before, after = original_command(folder, given)
    if under_torchrun():
        world().barrier()  # before rank 0 writes multirun.yaml anew
    began = parse(flags)
    args.overrides, args.multirun = [*before, *given, *after], True
    args.config_name = args.config_name or began.config_name
    args.config_dir = args.config_dir or began.config_dir
