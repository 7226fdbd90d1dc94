"""Around Hydra: help, flags and overrides, composing, resuming."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from gradlab.base import components
from gradlab.base.command import INTERRUPTED
from gradlab.base.conf import conf_dir
from gradlab.base.errors import APPENDED, EXTRAS, Usage, did_you_mean, package
from gradlab.base.option import Invalid
from gradlab.config.compose import SILENT, check, compose, register
from gradlab.runs.files import config_dirs

if TYPE_CHECKING:
    from omegaconf import DictConfig


RESULTS: list[int] = []
"""Exit codes of the jobs that this process ran."""
SWEEPS: list[Path] = []
"""Folders of the sweeps that this process began."""
REFUSED: list[Invalid] = []
"""Why a sweep that this process began has no job."""
STORED: dict[Path, str] = {}
"""overrides.yaml of the run that is resumed, as it was."""
SEARCHES = ("hydra/sweeper=boundary", "hydra/sweeper=quadtree")
"""Sweepers that decide by themselves what to run."""
HELP = """\
gradlab: a laboratory for gradient failures.

  python -m gradlab +experiment=fp16_collapse            a failure, live, with its cause and its cure
  python -m gradlab model=lstm clip=norm seed=3          any combination of the groups below
  python -m gradlab -m clip=none,norm optimizer.lr=1e-3,1e-2   a sweep: every combination, one folder each
  python -m gradlab +sweep=lr_max_norm model=lstm        a ready sweep, a folder for each of its jobs
  python -m gradlab hydra/sweeper=boundary +remedy=none,clip_norm   the largest stable optimizer.lr of each
  python -m gradlab.map x=optimizer.lr:1e-4:1 y=clip.max_norm:1e-3:100 clip=norm   a map, refined at its boundary
  python -m gradlab.report outputs/run/... outputs/run/...   their curves on one page; --serve follows one live
  python -m gradlab.list, python -m gradlab.show outputs/run/...   which runs there are; one's verdict and curves here
  python -m gradlab.audit train.py                       mistakes in a script of your own, without running it
  python -m gradlab resume=outputs/run/...               continue a run, or a sweep, that was interrupted
  torchrun --standalone --nproc-per-node=2 -m gradlab ...      the same on several processes

Groups (choose with group=option, change with group.field=value):
{groups}

Appended with a plus: +experiment={experiment}
  +remedy={remedy}
  +pitfall={pitfall}
  +sweep={sweep}
Where the jobs of a sweep run: hydra/launcher=basic,vectorized,{launchers}
Other fields: {fields}
The composed configuration: --cfg job. Your own configurations: --config-dir FOLDER. Hydra's own flags: --hydra-help.
Exit code: 0 ended as expected, 1 failed or something else was seen, 2 the command was wrong.
"""


def help_text() -> str:
    """What --help prints, from the text of files alone: no import of Hydra or PyTorch."""
    groups = [(group, components.names(group)) for group in components.groups() if group not in APPENDED]
    width = max(len(name) for name, _ in groups)
    listed = "\n".join(f"  {name:{width}}  {' '.join(names)}" for name, names in groups if names)
    fields = "seed expect pretrain init_from resume"
    appended = {name: ",".join(components.names(name)) for name in APPENDED}
    return HELP.format(groups=listed, fields=fields, launchers=",".join(EXTRAS), **appended)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Hydra's own flags and the overrides; one line for a wrong flag instead of Hydra's usage."""
    from hydra._internal.utils import get_args_parser

    parser = get_args_parser()
    known = sorted(flag for action in parser._actions for flag in action.option_strings)
    for flag in (argument.split("=")[0] for argument in arguments if argument.startswith("-")):
        if flag not in known:
            raise Usage(f"{flag}: no such flag{did_you_mean(flag, known)}; see --help and --hydra-help")

    def refuse(message: str) -> NoReturn:
        raise Usage(message)

    parser.error = refuse  # type: ignore[method-assign]
    args = parser.parse_intermixed_args(arguments)
    chosen = {"--run": args.run, "--multirun": args.multirun, "--cfg": args.cfg, "--info": args.info}
    if sum(map(bool, chosen.values())) > 1:
        raise Usage(f"{' and '.join(n for n, v in chosen.items() if v)} cannot be given together")
    if args.resolve and not args.cfg:
        raise Usage("--resolve goes with --cfg only")
    return args


def ordered(arguments: list[str], overrides: list[str]) -> list[str]:
    """Flags first, then the overrides, wherever they stood: Hydra wants all overrides side by side."""
    from hydra._internal.utils import get_args_parser

    with_value = {f for action in get_args_parser()._actions if action.nargs != 0 for f in action.option_strings}
    left = list(overrides)
    flags = []
    for before, argument in zip(["", *arguments], arguments):
        if left and argument == left[0] and before not in with_value:
            left.pop(0)
        else:
            flags.append(argument)
    return [*flags, *overrides]


def check_overrides(overrides: list[str], multirun: bool) -> None:
    """Refuse what Hydra accepts silently or in many lines: a value without a field, two options of one group."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser, seen = OverridesParser.create(), dict[str, str]()
    groups = components.groups()
    for override in overrides:
        if override.removeprefix("hydra/launcher=") in EXTRAS and "RANK" in os.environ:
            raise Usage(f"{override}: not under torchrun, whose processes share each job")
        try:
            parsed = parser.parse_override(override)
        except HydraException as error:
            why = " ".join(str(error).split("See https")[0].replace(f"Error parsing override '{override}'", "").split())
            raise Usage(f"{override}: must be group=option or group.field=value ({why})") from None
        name = parsed.key_or_group
        if not name:
            raise Usage(f"{override}: must be group=option or group.field=value; it names no field")
        if name not in groups or parsed.is_delete():
            continue
        if not parsed.is_sweep_override() and not names_options(name, parsed.value()):
            raise Usage(f"{override}: must be one of {', '.join(components.names(name))}")
        if name == "sweep" and parsed.is_sweep_override():
            raise Usage(f"{override}: one sweep at a time")
        if name in seen and seen[name] != override:
            raise Usage(f"{seen[name]} and {override}: one option of a group can be chosen")
        if parsed.is_sweep_override() and not multirun:
            raise Usage(f"{override}: several values need --multirun (-m)")
        seen[name] = override


def names_options(group: str, value: object) -> bool:
    """Whether a value can be a group's option; remedies and loggers can be combined: [a,b]."""
    if group in ("remedy", "logger") and isinstance(value, list):
        return bool(value) and all(isinstance(name, str) for name in value)
    return isinstance(value, str)


def run_hydra(arguments: list[str], main_rank: bool) -> int:
    """Compose and run; the worst exit code of all jobs."""
    import hydra

    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come here, to be said in one or two lines
    register()
    args = parse(arguments)
    arguments = ordered(arguments, args.overrides)
    arguments = resumed(arguments, args)
    args = parse(arguments)
    arguments = sweeping(arguments, args)
    args = parse(arguments)
    check_overrides(args.overrides, args.multirun or "hydra.mode=MULTIRUN" in args.overrides)
    if args.cfg:
        treated = validate(args)
        if not main_rank:
            return 0
        if treated is not None:
            show_instead(treated)
    if not main_rank:
        arguments = inserted(arguments, args, [], SILENT)
    sys.argv = [sys.argv[0], *arguments]
    try:
        hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")(job)()
        if REFUSED:
            raise REFUSED[0]
    except (Exception, KeyboardInterrupt) as error:
        for folder in SWEEPS if main_rank else []:
            if folder.is_dir() and {p.name for p in folder.iterdir()} <= {"multirun.yaml"}:
                shutil.rmtree(folder, ignore_errors=True)  # no job began: a wrong command, which leaves nothing
            elif ended_early(error, folder):
                return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
        raise
    return max(RESULTS, default=0)


def ended_early(error: BaseException, folder: Path) -> bool:
    """Whether a sweep was stopped, or lost one of its processes; then say what has been done."""
    from gradlab.cli import sweep_end

    lost = package(type(error).__module__) in EXTRAS.values()
    if not lost and not isinstance(error, KeyboardInterrupt):
        return False
    sweep_end.conclude(folder)
    if lost:
        print(f"gradlab: a process of the sweep was lost: {' '.join(str(error).split())[:200]}", file=sys.stderr)
    return True


def job(cfg: DictConfig) -> int:
    """Hydra's task function."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    from gradlab.cli.main import run_job
    from gradlab.train.interrupt import ASKED

    if INTERRUPTED in RESULTS:  # Ctrl-C ends a sweep, not one of its jobs
        folder = Path(HydraConfig.get().runtime.output_dir)
        if {p.name for p in folder.iterdir()} <= {".hydra", "gradlab.log"}:  # else it has run before
            shutil.rmtree(folder, ignore_errors=True)
        return INTERRUPTED
    code = run_job(cfg)
    RESULTS.append(code)
    if ASKED.is_set() and code != INTERRUPTED and HydraConfig.get().mode is RunMode.MULTIRUN:
        raise KeyboardInterrupt  # with its last update: this job is whole, and the sweep ends
    return code


def validate(args: argparse.Namespace) -> DictConfig | None:
    """Refuse what a run would refuse, before --cfg prints it; returns what remedies make of it, None without one."""
    from omegaconf import OmegaConf

    from gradlab.config.remedy import treated
    from gradlab.config.schema import to_config

    searched = [f"hydra.searchpath=[{Path(args.config_dir).resolve()}]"] if args.config_dir else []
    composed = compose([*args.overrides, *searched], args.config_name or "config")
    check(to_config(composed))
    changed, remedy = treated(composed, args.overrides)
    known = args.package in (None, "_global_", "hydra") or OmegaConf.select(changed, args.package) is not None
    if args.cfg == "job" and not known:
        raise Usage(f"--package {args.package}: there is none in the configuration")
    return changed if remedy else None


def show_instead(cfg: DictConfig) -> None:
    """Have Hydra's --cfg print this configuration in the place of the job's that it composes."""
    from hydra._internal.hydra import Hydra
    from omegaconf import flag_override

    sanitized = Hydra.get_sanitized_cfg

    def replaced(self: Hydra, composed: DictConfig, kind: str) -> DictConfig:
        with flag_override(composed, ["struct", "readonly"], [False, False]):
            for name in cfg:
                composed[name] = cfg._get_node(name)  # as it is written: not resolved
        return sanitized(self, composed, kind)

    Hydra.get_sanitized_cfg = replaced  # type: ignore[method-assign, assignment]


def resumed(arguments: list[str], args: argparse.Namespace) -> list[str]:
    """With `resume=FOLDER` among the arguments: those of that run, overruled by the others given, in its folder."""
    import yaml
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from gradlab.base.command import key

    given = [o for o in args.overrides if key(o) == "resume"]
    if not given or given[-1].partition("=")[2] in ("null", ""):
        return arguments
    folder = Path(str(OverridesParser.create().parse_override(given[-1]).value()))
    stored = folder / ".hydra" / "overrides.yaml"
    if (folder / "multirun.yaml").is_file():
        return sweep_resumed(folder, arguments, args)
    if args.multirun:
        raise Invalid("resume", folder, "one run at a time, without --multirun")
    if not stored.is_file():
        raise Invalid(
            "resume",
            folder,
            "must be the folder of a run or of a sweep (it holds no .hydra/overrides.yaml and no multirun.yaml)",
        )
    if not (folder / "checkpoint.pt").is_file():
        raise Invalid("resume", folder, "holds no checkpoint.pt to continue from")
    STORED[stored] = stored.read_text()
    mine = {key(o) for o in args.overrides}
    before = [o for o in yaml.safe_load(STORED[stored]) or [] if not mine & {key(o), key(o).split(".")[0]}]
    searched = [f"--config-dir={path}" for path in config_dirs(folder)]
    quoted = str(folder).replace("\\", "\\\\").replace("'", "\\'")
    arguments = inserted(arguments, args, before, [f"hydra.run.dir='{quoted}'", "hydra.mode=RUN"])
    return arguments if args.config_dir else [*searched, *arguments]


def sweep_resumed(folder: Path, arguments: list[str], args: argparse.Namespace) -> list[str]:
    """The arguments of the sweep in a folder, with those given now about where its jobs run."""
    from gradlab.base.command import key
    from gradlab.base.distributed import under_torchrun, world
    from gradlab.sweep.unfinished import begun_with

    given = [o for o in args.overrides if key(o) != "resume"]
    flags, before, after = begun_with(folder, given)
    if under_torchrun():
        world().barrier()  # before rank 0 writes multirun.yaml anew
    mine = [a for a in arguments if a not in args.overrides]
    return [*flags, *mine, *before, *given, *after]


def sweeping(arguments: list[str], args: argparse.Namespace) -> list[str]:
    """With +sweep=NAME, or a search, among the arguments: a multirun, but for the resumption of one of its runs."""
    from gradlab.base.command import key

    ready = [o for o in args.overrides if (o.startswith("+") and key(o) == "sweep") or o in SEARCHES]
    if ready and args.run:
        raise Usage(f"{ready[0]}: a sweep is no single run; leave out --run")
    alone = args.multirun or args.cfg or args.info or "hydra.mode=RUN" in args.overrides
    return ["--multirun", *arguments] if ready and not alone else arguments


def inserted(arguments: list[str], args: argparse.Namespace, before: list[str], after: list[str]) -> list[str]:
    """Overrides around those given, wherever the flags stand: Hydra wants all overrides side by side."""
    if not args.overrides:
        return [*arguments, *before, *after]
    first = arguments.index(args.overrides[0])
    last = first + len(args.overrides)
    return [*arguments[:first], *before, *arguments[first:last], *after, *arguments[last:]]


def restore_overrides() -> None:
    """A resumption that was refused leaves the overrides of the run as they were; Hydra has written those refused."""
    for path, text in STORED.items():
        path.write_text(text)
