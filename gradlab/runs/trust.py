"""Which folders may have run what they name.

The options of gradlab run gradlab's code; a target, a folder of configurations, an interpolation and Hydra's own fields
can run or read anything. What a folder names of these is run only if this user has run it on this machine before,
which a mark outside the folder records, or confirms it now.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gradlab.base import components
from gradlab.base.command import identity, key
from gradlab.base.option import Invalid
from gradlab.base.visible import one_line
from gradlab.runs.record import RunRecord

HYDRA = re.compile(
    r"hydra/(launcher|sweeper)=\w+|hydra/(job|hydra)_logging=disabled|hydra\.(run|sweep)\.dir=.*|hydra\.mode=\w+"
    r"|hydra\.output_subdir=null|hydra\.launcher\.(n_jobs|workers|memory)=\w+|hydra\.callbacks\.gradlab\.goes_on=\w+"
    r"|hydra\.sweeper\.[a-z_]+=[^{}$]*"
)
"""What of Hydra's own is not asked about."""


def named(overrides: Iterable[str], config_dirs: Sequence[str] = ()) -> list[str]:
    """What of a folder's overrides can run code or read what is not of the run, or sends the run elsewhere."""
    return [*(o for o in overrides if not harmless(o)), *(f"--config-dir={path}" for path in config_dirs)]


def harmless(override: str) -> bool:
    """Whether an override only chooses among gradlab's options, and sets their values."""
    name, value = key(override), override.partition("=")[2]
    if "target" in override or "${" in override or name.split(".")[0] == "logger":
        return False
    if name.startswith("hydra"):
        return HYDRA.fullmatch(f"{name}={value}") is not None
    return not (name in components.groups() or "@" in name or "/" in name) or "/" not in value


def confirm(
    field: str,
    folder: Path,
    overrides: Sequence[str],
    config_dirs: Sequence[str],
    trusted: bool,
    unmarked: bool = False,
) -> None:
    """Raise `Invalid` where a folder names what this user has not run on this machine, and does not confirm now.

    unmarked: a mark is not enough.
    """
    found = named(overrides, config_dirs)
    if not found or trusted or (not unmarked and mark_of(overrides, config_dirs).is_file()):
        return
    what = [one_line(o) for o in found]
    if sys.stdin.isatty() and sys.stderr.isatty() and "RANK" not in os.environ:
        print(f"{folder} is not of a run of yours on this machine. It names:", *what, sep="\n  ", file=sys.stderr)
        if input("Run this? [y/N] ").strip().lower() in ("y", "yes"):
            return
    why = f"names {', '.join(what)}, and is not of a run of yours on this machine: --trust runs what it names"
    raise Invalid(field, folder, why)


def mark(overrides: Sequence[str], config_dirs: Sequence[str]) -> None:
    """Remember that this user runs this on this machine."""
    if named(overrides, config_dirs):
        with suppress(OSError, RuntimeError):  # no home, or one that cannot be written: the user is asked
            path = mark_of(overrides, config_dirs)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()


def sweep_named(hydra: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The overrides and folders of configurations of a sweep, from Hydra's own part of its configuration."""
    overrides, sources = hydra["overrides"], hydra["runtime"]["config_sources"]
    typed = [*overrides["task"], *(o for o in overrides["hydra"] if not harmless(o))]
    return typed, [source["path"] for source in sources if source["provider"] == "command-line"]


def mark_run(folder: Path) -> None:
    """Remember the run in a folder."""
    run = RunRecord(folder)
    mark(run.typed, run.config_dirs)


def mark_of(overrides: Sequence[str], config_dirs: Sequence[str]) -> Path:
    """The file that says so: its name is a digest of all that is typed."""
    state = os.environ.get("XDG_STATE_HOME")
    typed = json.dumps([identity(list(overrides)), list(config_dirs)])
    digest = hashlib.sha256(typed.encode("utf-8", "surrogatepass")).hexdigest()
    return (Path(state) if state else Path.home() / ".local" / "state") / "gradlab" / "ran" / digest


def refuse_links(field: str, folder: Path) -> None:
    """Raise `Invalid` where a file that would be read or written is a symbolic link, which could be any file of this
    user's, or a named pipe or device. Of a sweep, or what fixes a run, in the folders of its jobs too."""
    jobs = [hydra.parent for hydra in folder.rglob(".hydra")]
    if any((folder / name).exists() for name in ("multirun.yaml", "fix.json")):
        jobs += [path for path in folder.glob("[!.]*") if path.is_dir()]  # submitit keeps a link in .submitit
    for run in dict.fromkeys((folder, *jobs)):
        for path in (*run.glob("*"), *run.glob(".hydra/*")):
            if kind := odd(path):
                name = one_line(str(path.relative_to(folder)))
                raise Invalid(field, folder, f"holds a {kind}, which is neither read nor written: {name}")


def odd(path: Path) -> str:
    """What a path is that is neither a file nor a folder."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:  # removed just now, by the run
        return ""
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return ""
    return "symbolic link" if stat.S_ISLNK(mode) else "pipe or device"
