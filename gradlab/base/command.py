"""What the small commands beside `python -m gradlab` share: flags, one-line errors, exit codes, commands to paste."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from gradlab.base import errors
from gradlab.base.visible import printable

INTERRUPTED = 130
"""Exit code of a run that was stopped, as of any program that Ctrl-C ends."""
WRONG = 2
"""Exit code of a wrong command."""


class Parser(argparse.ArgumentParser):
    """One line for a wrong flag instead of the usage."""

    def error(self, message: str) -> NoReturn:
        raise errors.Usage(f"{message}; see {self.prog} --help")


def exit_code(work: Callable[[list[str]], int], arguments: list[str] | None = None) -> int:
    """Do the work with these arguments, or the command's own; a mistake of the user is reported in a line."""
    printable()
    try:
        return work(sys.argv[1:] if arguments is None else arguments)
    except Exception as error:
        message = errors.explain(error)
        if message is None:
            raise
        print(f"gradlab: {message}", file=sys.stderr)
        return errors.exit_code(error)


def key(override: str) -> str:
    """What an override sets: the same for `a=1`, `+a=1`, `++a=1` and `~a`."""
    return override.lstrip("+~").split("=")[0]


def appended(override: str) -> str:
    """Hydra wants a plus before what is put into a mapping."""
    return "+" * bool(re.match(r"(\w+\.kwargs|loss\.weights)[.=]", override)) + override


def identity(overrides: list[str]) -> list[str]:
    """The overrides that decide a run, whether it was resumed or not."""
    return [o for o in overrides if key(o) != "resume"]


def command(overrides: list[str], module: str = "gradlab") -> str:
    """To be pasted into a shell."""
    return shlex.join(["python", "-m", module, *overrides])


def quoted(folder: object) -> str:
    """A path as the value of an override: between single quotes, as Hydra reads it."""
    return "'" + str(folder).replace("\\", "\\\\").replace("'", "\\'") + "'"


def kept(overrides: list[str], replacing: list[str]) -> list[str]:
    """The run's own overrides, less those that others replace: with a group also the fields of its old option."""
    replaced = {key(o) for o in replacing} | {"expect", "resume"}
    return [o for o in overrides if key(o) not in replaced and key(o).split(".")[0] not in replaced]


def text(value: Any) -> str:
    """A value as on the command line."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}: {text(each)}' for name, each in value.items())}}}"
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def untreated(overrides: list[str], remedy: Mapping[str, Any] | None) -> list[str]:
    """A treated run's overrides without +remedy=, but with what that changed. remedy: the entry of diagnosis.json."""
    changed = (remedy or {}).get("changed") or {}
    if not changed:
        return overrides
    made = [f"{name}={text(after)}" for name, (_, after) in changed.items() if after is not None or "." not in name]
    return [*(o for o in kept(overrides, made) if key(o) != "remedy"), *sorted(made, key=lambda o: "." in key(o))]


def pasted(overrides: list[str], changes: list[str]) -> list[str]:
    """A run's overrides with changes; `~group` takes back an option that was added."""
    return [*kept(overrides, changes), *(o for o in changes if not o.startswith("~"))]
