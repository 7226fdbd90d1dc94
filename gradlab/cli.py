"""Around Hydra: help, resuming, errors in one or two lines, pretraining, and the end of a sweep."""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from gradlab.option import Invalid

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from gradlab.config import Config

RESULTS: list[int] = []
"""Exit codes of the jobs that this process ran."""
SWEEPS: list[Path] = []
"""Folders of the sweeps that this process began."""
STORED: dict[Path, str] = {}
"""overrides.yaml of the run that is resumed, as it was."""
INTERRUPTED = 130
APPENDED = ("experiment", "remedy", "pitfall", "sweep")
"""Groups that a plus appends."""
_STAMP: list[str] = []

HELP = """\
gradlab: a laboratory for gradient failures.

  python -m gradlab +experiment=fp16_collapse            a failure, live, with its cause and its cure
  python -m gradlab model=lstm clip=norm seed=3          any combination of the groups below
  python -m gradlab -m clip=none,norm optimizer.lr=1e-3,1e-2   a sweep: every combination, one folder each
  python -m gradlab resume=outputs/run/...               continue a run that was interrupted
  torchrun --standalone --nproc-per-node=2 -m gradlab ...      the same on several processes

Groups (choose with group=option, change with group.field=value):
{groups}

Appended with a plus: +experiment={experiments}
Other fields: {fields}
The composed configuration: --cfg job. Your own configurations: --config-dir FOLDER. Hydra's own flags: --hydra-help.
Exit code: 0 ended as expected, 1 failed or something else was seen, 2 the command was wrong.
"""


def yaml_names(folder: Path) -> list[str]:
    return sorted(p.stem for p in folder.glob("*.yaml"))


def help_text() -> str:
    """What --help prints, from the names of files alone: no import of Hydra or PyTorch."""
    conf = Path(__file__).parent / "conf"
    conf = conf if conf.is_dir() else Path(__file__).parent.parent / "conf"
    groups = [(d.name, yaml_names(d)) for d in sorted(conf.iterdir()) if d.is_dir() and d.name not in APPENDED]
    width = max(len(name) for name, _ in groups)
    listed = "\n".join(f"  {name:{width}}  {' '.join(names)}" for name, names in groups if names)
    fields = "seed expect pretrain init_from resume"
    return HELP.format(groups=listed, experiments=",".join(yaml_names(conf / "experiment")), fields=fields)


def run_stamp() -> str:
    """Name of this process's run folder: the same on every rank, another for every run."""
    if not _STAMP:
        from datetime import datetime
        from secrets import token_hex

        from gradlab.distributed import world

        _STAMP.append(world().broadcast(f"{datetime.now():%Y-%m-%d_%H-%M-%S}_{token_hex(2)}"))
    return _STAMP[0]


def register() -> None:
    """Tell Hydra of the schema and OmegaConf of the resolvers."""
    from omegaconf import OmegaConf

    from gradlab import config

    config.register()
    OmegaConf.register_new_resolver("run_stamp", run_stamp, replace=True)


class Usage(ValueError):
    """A command line that cannot be read; the message says all."""


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
    args = parser.parse_args(arguments)
    chosen = {"--run": args.run, "--multirun": args.multirun, "--cfg": args.cfg, "--info": args.info}
    if sum(map(bool, chosen.values())) > 1:
        raise Usage(f"{' and '.join(n for n, v in chosen.items() if v)} cannot be given together")
    if args.resolve and not args.cfg:
        raise Usage("--resolve goes with --cfg only")
    return args


def check_overrides(overrides: list[str], multirun: bool) -> None:
    """Refuse what Hydra accepts silently or in many lines: a value without a field, two options of one group."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    from gradlab.config import conf_dir

    parser, seen = OverridesParser.create(), dict[str, str]()
    groups = {p.name for p in conf_dir().iterdir() if p.is_dir()}
    for override in overrides:
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
        if not parsed.is_sweep_override() and not isinstance(parsed.value(), str):
            raise Usage(f"{override}: must be one of {', '.join(yaml_names(conf_dir() / name))}")
        if name in seen and seen[name] != override:
            raise Usage(f"{seen[name]} and {override}: one option of a group can be chosen")
        if parsed.is_sweep_override() and not multirun:
            raise Usage(f"{override}: several values need --multirun (-m)")
        seen[name] = override


def run_hydra(arguments: list[str], main_rank: bool) -> int:
    """Compose and run; the worst exit code of all jobs."""
    import hydra

    from gradlab.config import conf_dir

    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come here, to be said in one or two lines
    register()
    args = parse(arguments)
    arguments = resumed(arguments, args)
    args = parse(arguments)
    check_overrides(args.overrides, args.multirun or "hydra.mode=MULTIRUN" in args.overrides)
    if args.cfg:
        validate(args)
    if not main_rank:
        silent = ["hydra.output_subdir=null", "hydra/job_logging=disabled", "hydra/hydra_logging=disabled"]
        arguments = inserted(arguments, args, [], silent)
    sys.argv = [sys.argv[0], *arguments]
    try:
        hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")(job)()
    except Exception:
        for folder in SWEEPS:  # if no job began, it is a wrong command and leaves nothing
            if main_rank and folder.is_dir() and {p.name for p in folder.iterdir()} <= {"multirun.yaml"}:
                shutil.rmtree(folder, ignore_errors=True)
        raise
    return max(RESULTS, default=0)


def job(cfg: DictConfig) -> int:
    """Hydra's task function."""
    from hydra.core.hydra_config import HydraConfig

    from gradlab.app import run_job

    if INTERRUPTED in RESULTS:  # Ctrl-C ends a sweep, not one of its jobs
        shutil.rmtree(HydraConfig.get().runtime.output_dir, ignore_errors=True)
        return INTERRUPTED
    code = run_job(cfg)
    RESULTS.append(code)
    return code


def validate(args: argparse.Namespace) -> None:
    """Refuse what a run would refuse, before --cfg prints it."""
    from omegaconf import OmegaConf

    from gradlab.config import to_config

    searched = [f"hydra.searchpath=[{Path(args.config_dir).resolve()}]"] if args.config_dir else []
    composed = compose([*args.overrides, *searched], args.config_name or "config")
    check(to_config(composed))
    known = args.package in (None, "_global_", "hydra") or OmegaConf.select(composed, args.package) is not None
    if args.cfg == "job" and not known:
        raise Usage(f"--package {args.package}: there is none in the configuration")


def check(config: Config) -> None:
    """What a configuration cannot check by itself."""
    from gradlab.verdict import check_expectation

    check_expectation(config.expect)


def compose(overrides: list[str], name: str = "config") -> DictConfig:
    """The configuration of these overrides, inside or outside of a Hydra job."""
    import hydra
    from hydra.core.global_hydra import GlobalHydra

    from gradlab.config import conf_dir

    if GlobalHydra.instance().is_initialized():
        return hydra.compose(name, overrides)
    register()
    with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return hydra.compose(name, overrides)


def resumed(arguments: list[str], args: argparse.Namespace) -> list[str]:
    """With `resume=FOLDER` among the arguments: those of that run, overruled by the others given, in its folder."""
    import yaml
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from gradlab.verdict import key

    given = [o for o in args.overrides if key(o) == "resume"]
    if not given or given[-1].partition("=")[2] in ("null", ""):
        return arguments
    folder = Path(str(OverridesParser.create().parse_override(given[-1]).value()))
    stored = folder / ".hydra" / "overrides.yaml"
    if args.multirun:
        raise Invalid("resume", folder, "one run at a time, without --multirun")
    if not stored.is_file():
        raise Invalid("resume", folder, "must be the folder of a run (it holds no .hydra/overrides.yaml)")
    if not (folder / "checkpoint.pt").is_file():
        raise Invalid("resume", folder, "holds no checkpoint.pt to continue from")
    STORED[stored] = stored.read_text()
    mine = {key(o) for o in args.overrides}
    before = [o for o in yaml.safe_load(STORED[stored]) or [] if not mine & {key(o), key(o).split(".")[0]}]
    sources = yaml.safe_load((folder / ".hydra" / "hydra.yaml").read_text())["hydra"]["runtime"]["config_sources"]
    searched = [f"--config-dir={s['path']}" for s in sources if s["provider"] == "command-line"]
    quoted = str(folder).replace("\\", "\\\\").replace("'", "\\'")
    arguments = inserted(arguments, args, before, [f"hydra.run.dir='{quoted}'"])
    return arguments if args.config_dir else [*searched, *arguments]


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


def compose_experiment(name: str, device: str, seed: int) -> tuple[DictConfig, str]:
    """An experiment's configuration with the run's device and seed, and the key under which its result is kept."""
    import platform

    import torch
    from hydra.errors import MissingConfigException
    from omegaconf import OmegaConf

    try:
        composed = compose([f"+experiment={name}", f"trainer.device={device}", f"seed={seed}"])
    except MissingConfigException as error:
        allowed = ", ".join(str(o) for o in error.options or []) or "(none here)"
        raise Invalid("pretrain", name, f"must be one of the experiments {allowed}") from None
    text = OmegaConf.to_yaml(composed, resolve=True, sort_keys=True)
    versions = f"{platform.python_version()} {torch.__version__} {torch.get_num_threads()}"
    return composed, hashlib.sha256(f"{text}{versions}".encode()).hexdigest()[:8]


def pretrain(composed: DictConfig, folder: Path, progress: str) -> None:
    """Run an experiment for its weights."""
    from omegaconf import OmegaConf

    from gradlab.config import to_config
    from gradlab.loggers.progress import Progress
    from gradlab.trainer import Trainer

    config = to_config(composed)
    shown = Progress(progress, 0, True)
    folder.mkdir(parents=True, exist_ok=True)
    OmegaConf.save(composed, folder / "config.yaml", resolve=True)
    plain: Any = OmegaConf.to_container(composed, resolve=True)
    trainer = Trainer(config, folder, plain_config=plain, say=shown.say)
    shown.total = trainer.planned
    shown.say(f"pretraining, once ({shown.total} updates, kept in {folder}): {config.story.strip()}")
    trainer.sinks = (lambda metrics, layers: shown.log(metrics) if "train/loss" in metrics else None,)
    shown.start()
    try:
        outcome = trainer.run()
    finally:
        shown.finish(trainer.outcome.applied)
    if outcome.status == "interrupted":
        (folder / "checkpoint.pt").unlink(missing_ok=True)
        raise KeyboardInterrupt
    if outcome.status != "completed":
        raise RuntimeError(f"pretraining {folder.name} {outcome.status}: {outcome.error}")


def did_you_mean(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def explain(error: BaseException, folder: Path | None = None) -> str | None:
    """What a user did wrong, in one or two lines; None for a fault of gradlab, which deserves its traceback."""
    if isinstance(error, (Invalid, Usage)):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or folder or 'output'}: {error.strerror}"
    if isinstance(error, SystemExit):
        return f"the code that the configuration names called sys.exit({error.code!r})"
    if package(type(error).__module__) not in HYDRA and package(raised_in(error)) not in HYDRA:
        return None
    cause = error.__cause__ or error
    return (
        unknown_option(error)
        or ambiguous(error)
        or missing_plus(error)
        or unknown_field(error, cause)
        or wrong_value(error, cause)
        or two_lines(error)
    )


def exit_code(error: BaseException) -> int:
    """2 for a wrong command, 1 for a fault of gradlab or of the machine, such as a full disk."""
    if isinstance(error, OSError) and package(type(error).__module__) not in HYDRA:
        return 2 if isinstance(error, FileNotFoundError) else 1
    return 1 if isinstance(error, SystemExit) or explain(error) is None else 2


HYDRA = ("hydra", "omegaconf", "antlr4")


def package(module: str) -> str:
    return module.split(".")[0]


def raised_in(error: BaseException) -> str:
    """Name of the module that raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_globals.get("__name__", "") if trace is not None else ""


def two_lines(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "\n  ".join(lines[:2])


def ambiguous(error: BaseException) -> str | None:
    """`clip.max_norm=1,2` without -m."""
    found = re.search(r"Ambiguous value for argument '(.+)'", str(error))
    return f"{found[1]}: several values need --multirun (-m); a list is [1,2]" if found else None


def missing_plus(error: BaseException) -> str | None:
    """`experiment=fp16_collapse`."""
    found = re.search(r"Could not override '(\w+)'", str(error))
    if found is None or found[1] not in APPENDED:
        return None
    return f"{found[1]}: is appended, so it needs a plus: +{found[1]}=..."


def unknown_option(error: BaseException) -> str | None:
    """`clip=foo`."""
    options, missing = getattr(error, "options", None), getattr(error, "missing_cfg_file", None)
    if not missing:
        return None
    group, _, name = str(missing).removesuffix(".yaml").rpartition("/")
    allowed = [str(o) for o in options or []]
    if not group:
        return f"--config-name {name}: there is no such file"
    return f"{group}={name}: must be one of {', '.join(allowed) or '(none here)'}{did_you_mean(name, allowed)}"


def unknown_field(error: BaseException, cause: BaseException) -> str | None:
    """`clip.maxnorm=1`, `sed=1`, `clp=norm`."""
    found = re.search(r"Could not override '([^']+)'", str(error))
    if found is None:
        return None
    full = found[1].split("@")[0]
    group, _, name = full.rpartition(".")
    parent = getattr(cause, "parent_node", None)
    from gradlab.config import Config

    known = [str(k) for k in parent] if group and parent is not None else list(Config.__dataclass_fields__)
    near = did_you_mean(name, known)
    return f"{full}: no such field{near}; {group or 'gradlab'} has {', '.join(known) or 'no fields'}"


def wrong_value(error: BaseException, cause: BaseException) -> str | None:
    """`clip.max_norm=abc`."""
    found = re.search(r"Error merging override (\S+?)=(.*)", str(error))
    if found is None:
        return None
    kinds = {"Float": "a number", "Integer": "a whole number", "bool": "true or false", "Boolean": "true or false"}
    kind = re.search(r"could not be converted to (\w+)|is not a valid (\w+)", str(cause))
    wanted = next((g for g in kind.groups() if g), None) if kind else None
    allowed = f"must be {kinds.get(wanted, wanted)}" if wanted else str(cause).splitlines()[0]
    allowed = "must not be null" if "is not Optional" in allowed else allowed
    return f"{found[1].lstrip('+')}={found[2]}: {allowed}"


def sweep_ended(folder: Path) -> list[dict[str, Any]]:
    """Every job of a sweep with its overrides, verdict and exit code; a job that left nothing failed."""
    import yaml

    rows = []
    jobs = (p.parent.parent for p in folder.rglob(".hydra/overrides.yaml"))
    for path in sorted(jobs, key=lambda p: (not p.name.isdigit(), int(p.name) if p.name.isdigit() else 0, p.name)):
        try:
            result = json.loads((path / "diagnosis.json").read_text())
        except (OSError, json.JSONDecodeError):
            result = {}
        last = ((result.get("outcome") or {}).get("eval") or [{}])[-1]
        overrides = yaml.safe_load((path / ".hydra" / "overrides.yaml").read_text()) or []
        rows.append(
            {
                "job": str(path.relative_to(folder)),
                "overrides": " ".join(overrides),
                "verdict": result.get("verdict"),
                "eval/loss": last.get("eval/loss"),
                "exit_code": result.get("exit_code", 1),
            }
        )
    return rows
