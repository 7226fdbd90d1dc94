"""Around Hydra: help, resuming, errors in one or two lines, pretraining, and the end of a sweep."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradlab.option import Invalid

if TYPE_CHECKING:
    from omegaconf import DictConfig

RESULTS: list[int] = []
"""Exit codes of the jobs that this process ran."""
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
    appended = {"experiment", "remedy", "pitfall", "sweep"}
    groups = [(d.name, yaml_names(d)) for d in sorted(conf.iterdir()) if d.is_dir() and d.name not in appended]
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


def check_flags(arguments: list[str]) -> None:
    """Refuse a flag that Hydra does not know, in one line instead of its usage."""
    from hydra._internal.utils import get_args_parser

    known = sorted(f for action in get_args_parser()._actions for f in action.option_strings)
    for argument in arguments:
        flag = argument.split("=")[0]
        if flag.startswith("-") and flag not in known:
            raise Invalid("flag", flag, f"unknown{did_you_mean(flag, known)}; see --help and --hydra-help")


def run_hydra(arguments: list[str], main_rank: bool) -> int:
    """Compose and run; the worst exit code of all jobs."""
    import hydra

    from gradlab.config import conf_dir

    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come here, to be said in one or two lines
    register()
    check_flags(arguments)
    if {"--cfg", "-c"} & set(arguments) and not {"--multirun", "-m"} & set(arguments):
        validate(arguments)
    if not main_rank:
        silent = ["hydra.output_subdir=null", "hydra/job_logging=disabled", "hydra/hydra_logging=disabled"]
        arguments = [*arguments, *silent]
    sys.argv = [sys.argv[0], *arguments]
    hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")(job)()
    return max(RESULTS, default=0)


def job(cfg: DictConfig) -> int:
    """Hydra's task function."""
    from gradlab.app import run_job

    code = run_job(cfg)
    RESULTS.append(code)
    return code


def validate(arguments: list[str]) -> None:
    """Refuse what a run would refuse, before --cfg prints it."""
    from hydra._internal.utils import get_args_parser

    from gradlab.config import to_config

    parsed = get_args_parser().parse_args(arguments)
    searched = [f"hydra.searchpath=[{Path(parsed.config_dir).resolve()}]"] if parsed.config_dir else []
    to_config(compose([*parsed.overrides, *searched]))


def compose(overrides: list[str]) -> DictConfig:
    """The configuration of these overrides, inside or outside of a Hydra job."""
    import hydra
    from hydra.core.global_hydra import GlobalHydra

    from gradlab.config import conf_dir

    if GlobalHydra.instance().is_initialized():
        return hydra.compose("config", overrides)
    register()
    with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return hydra.compose("config", overrides)


def key(override: str) -> str:
    """What an override sets: the same for `a=1`, `+a=1`, `++a=1` and `~a`."""
    return override.lstrip("+~").split("=")[0]


def resumed(arguments: list[str]) -> list[str]:
    """With `resume=FOLDER` among the arguments: those of that run, overruled by the others given, in its folder."""
    given = [a.split("=", 1)[1] for a in arguments if a.startswith("resume=")]
    if not given or given[-1] in ("null", ""):
        return arguments
    folder = Path(given[-1])
    stored = folder / ".hydra" / "overrides.yaml"
    if not stored.is_file():
        raise Invalid("resume", folder, "must be the folder of a run (it holds no .hydra/overrides.yaml)")
    if not (folder / "checkpoint.pt").is_file():
        raise Invalid("resume", folder, "holds no checkpoint.pt to continue from")
    import yaml

    mine = {key(a) for a in arguments}
    before = [o for o in yaml.safe_load(stored.read_text()) or [] if key(o) not in mine]
    quoted = str(folder).replace("'", "\\'")
    return [*before, *arguments, f"hydra.run.dir='{quoted}'"]


def compose_experiment(name: str, device: str) -> tuple[DictConfig, str]:
    """An experiment's configuration, and the key under which its result is kept."""
    import platform

    import torch
    from omegaconf import OmegaConf

    composed = compose([f"+experiment={name}", f"trainer.device={device}"])
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
        shown.finish({"update": trainer.outcome.applied})
    if outcome.status == "interrupted":
        (folder / "checkpoint.pt").unlink(missing_ok=True)
        raise KeyboardInterrupt
    if outcome.status != "completed":
        raise RuntimeError(f"pretraining {folder.name} {outcome.status}: {outcome.error}")


def did_you_mean(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def explain(error: BaseException) -> str | None:
    """What a user did wrong, in one or two lines; None for a fault of gradlab, which deserves its traceback."""
    if isinstance(error, Invalid):
        return str(error)
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, OSError) and error.errno is not None and error.strerror:
        return error.strerror
    module = type(error).__module__.split(".")[0]
    if module not in ("hydra", "omegaconf"):
        return None
    cause = error.__cause__ or error
    return unknown_option(error) or unknown_field(error, cause) or wrong_value(error, cause) or two_lines(error)


def two_lines(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "\n  ".join(lines[:2])


def unknown_option(error: BaseException) -> str | None:
    """`clip=foo`."""
    options, missing = getattr(error, "options", None), getattr(error, "missing_cfg_file", None)
    if not missing:
        return None
    group, _, name = str(missing).removesuffix(".yaml").rpartition("/")
    allowed = [str(o) for o in options or []]
    return f"{group}={name}: must be one of {', '.join(allowed)}{did_you_mean(name, allowed)}"


def unknown_field(error: BaseException, cause: BaseException) -> str | None:
    """`clip.maxnorm=1`, `sed=1`, `clp=norm`."""
    import re

    found = re.search(r"Could not override '([^']+)'", str(error))
    if found is None:
        return None
    full = found[1].split("@")[0]
    group, _, name = full.rpartition(".")
    parent = getattr(cause, "parent_node", None)
    from gradlab.config import Config

    known = [str(k) for k in parent] if parent is not None else list(Config.__dataclass_fields__)
    near = did_you_mean(name, known)
    return f"{full}: no such field{near}; {group or 'gradlab'} has {', '.join(known) or 'no fields'}"


def wrong_value(error: BaseException, cause: BaseException) -> str | None:
    """`clip.max_norm=abc`."""
    import re

    found = re.search(r"Error merging override (\S+?)=(.*)", str(error))
    if found is None:
        return None
    kinds = {"Float": "a number", "Integer": "a whole number", "bool": "true or false", "Boolean": "true or false"}
    kind = re.search(r"could not be converted to (\w+)|is not a valid (\w+)", str(cause))
    wanted = next((g for g in kind.groups() if g), None) if kind else None
    allowed = f"must be {kinds.get(wanted, wanted)}" if wanted else str(cause).splitlines()[0]
    return f"{found[1].lstrip('+')}={found[2]}: {allowed}"


def sweep_ended(folder: Path) -> list[dict[str, Any]]:
    """Every job of a sweep with its overrides, verdict and exit code; a job that left nothing failed."""
    import yaml

    rows = []
    numbered = (p for p in folder.iterdir() if (p / ".hydra" / "overrides.yaml").is_file())
    for path in sorted(numbered, key=lambda p: (not p.name.isdigit(), int(p.name) if p.name.isdigit() else 0, p.name)):
        try:
            result = json.loads((path / "diagnosis.json").read_text())
        except (OSError, json.JSONDecodeError):
            result = {}
        last = ((result.get("outcome") or {}).get("eval") or [{}])[-1]
        overrides = yaml.safe_load((path / ".hydra" / "overrides.yaml").read_text()) or []
        rows.append(
            {
                "job": path.name,
                "overrides": " ".join(overrides),
                "verdict": result.get("verdict"),
                "eval/loss": last.get("eval/loss"),
                "exit_code": result.get("exit_code", 1),
            }
        )
    return rows
