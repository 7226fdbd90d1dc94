"""Arguments of `python -m gradlab`: Hydra's flags and the overrides, read once and checked."""

from __future__ import annotations

import argparse
import os
import re
from typing import TYPE_CHECKING, NoReturn

from gradlab.base import components
from gradlab.base.command import appended, key
from gradlab.base.errors import EXTRAS, MORE, Usage
from gradlab.base.suggestions import did_you_mean, must_be

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override


def parse(arguments: list[str]) -> argparse.Namespace:
    """Hydra's own flags and the overrides; a wrong flag raises `Usage` with one line in place of Hydra's usage."""
    from hydra._internal.utils import get_args_parser

    parser = get_args_parser()
    parser.add_argument("--trust", action="store_true", help="resume= runs what a folder from elsewhere names")
    known = sorted(flag for action in parser._actions for flag in action.option_strings)
    for flag in (argument.split("=")[0] for argument in arguments if argument.startswith("-")):
        if flag not in known:
            raise Usage(f"{flag}: no such flag{did_you_mean(flag, known)}; see --help and --hydra-help")

    def refuse(message: str) -> NoReturn:
        raise Usage(message)

    parser.error = refuse  # type: ignore[method-assign]
    args = parser.parse_intermixed_args([normal(a) for a in arguments])
    check_flags(args)
    return args


def normal(argument: str) -> str:
    """Hydra wants a plus before what is put into a mapping, and quotes around letters that are not ASCII."""
    name, equals, value = argument.partition("=")
    if equals and not value.isascii() and not re.search(r"""[,'"()\[\]{}$\\]""", value):
        argument = f"{name}='{value}'"
    return "fix=true" if argument == "+fix=true" else appended(argument)


def check_flags(args: argparse.Namespace) -> None:
    """Raise `Usage` for flags that exclude each other."""
    chosen = {"--run": args.run, "--multirun": args.multirun, "--cfg": args.cfg, "--info": args.info}
    if sum(map(bool, chosen.values())) > 1:
        raise Usage(f"{' and '.join(n for n, v in chosen.items() if v)} cannot be given together")
    if args.resolve and not args.cfg:
        raise Usage("--resolve goes with --cfg only")
    if args.experimental_rerun:
        raise Usage("--experimental-rerun: not supported; resume=FOLDER continues a run")


def searches(override: str) -> bool:
    """Whether it chooses a sweeper that decides by itself what to run."""
    return key(override) == "hydra/sweeper" and override != "hydra/sweeper=basic"


def choose_multirun(args: argparse.Namespace) -> None:
    """+sweep=NAME, or a search, is a multirun; unless one of its runs is resumed."""
    ready = [o for o in args.overrides if (o.startswith("+") and key(o) == "sweep") or searches(o)]
    if ready and args.run:
        raise Usage(f"{ready[0]}: a sweep is not a single run; leave out --run")
    alone = args.cfg or args.info or "hydra.mode=RUN" in args.overrides
    args.multirun = bool(args.multirun or (ready and not alone))


def check_overrides(args: argparse.Namespace) -> None:
    """Refuse what Hydra accepts silently or in many lines: a value without a field, two options of one group."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser, groups, seen = OverridesParser.create(), components.groups(), dict[str, str]()
    multirun = args.multirun or "hydra.mode=MULTIRUN" in args.overrides
    extended = bool(args.config_dir) or "hydra.searchpath" in map(key, args.overrides)
    for override in args.overrides:
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
        check_choice(override, parsed, multirun, extended)
        if name in seen and seen[name] != override:
            raise Usage(f"{seen[name]} and {override}: one option of a group can be chosen")
        seen[name] = override


def check_choice(override: str, parsed: Override, multirun: bool, extended: bool) -> None:
    """Raise `Usage` unless an override chooses an option of its group, or several to be swept.

    extended: whether folders of a user's own may hold more options.
    """
    name = parsed.key_or_group
    if not parsed.is_sweep_override() and not names_options(name, parsed.value()):
        raise Usage(f"{override}: must be one of {', '.join(components.names(name))}")
    if name == "data" and not extended and not parsed.is_sweep_override():  # it is optional: Hydra would miss nothing
        known, value = components.names(name), str(parsed.value())
        if value not in known and not value.startswith("default/"):
            raise Usage(f"{override}: {must_be(value, known)}{MORE[name]}")
    if name == "sweep" and parsed.is_sweep_override():
        raise Usage(f"{override}: one sweep at a time")
    if parsed.is_sweep_override() and not multirun:
        raise Usage(f"{override}: several values need --multirun (-m)")


def names_options(group: str, value: object) -> bool:
    """Whether a value can be a group's option; remedies and loggers can be combined: [a,b]."""
    if group in ("remedy", "logger") and isinstance(value, list):
        return bool(value) and all(isinstance(name, str) for name in value)
    return isinstance(value, str)
