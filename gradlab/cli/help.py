"""What `--help` prints; and what completes commands in bash."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from gradlab.base import components
from gradlab.base.errors import APPENDED, EXTRAS
from gradlab.base.visible import wrapped

COMMANDS = (
    ("python -m gradlab +experiment=fp16_collapse", "a failure, live, with its cause and its fix"),
    ("python -m gradlab model=lstm clip=norm seed=3", "any combination of the groups below"),
    ("python -m gradlab -m clip=none,norm optimizer.lr=1e-3,1e-2", "a sweep: every combination, one folder each"),
    ("python -m gradlab +sweep=lr_max_norm model=lstm", "a ready-made sweep, a folder for each of its jobs"),
    ("python -m gradlab hydra/sweeper=boundary +remedy=none,clip_norm", "the largest stable optimizer.lr of each"),
    (
        "python -m gradlab.map x=optimizer.lr:1e-4:1 y=clip.max_norm:1e-3:100 clip=norm",
        "a map, refined at its boundary",
    ),
    ("python -m gradlab.report FOLDER FOLDER", "their curves on one page; --serve follows one live"),
    ("python -m gradlab.list", "which runs there are"),
    ("python -m gradlab.show FOLDER", "a run's verdict and curves, in the terminal"),
    ("python -m gradlab.audit train.py", "mistakes in a script of your own, without running it"),
    ("python -m gradlab resume=FOLDER", "continue a run, or a sweep, that was interrupted"),
    ("torchrun --standalone --nproc-per-node=2 -m gradlab ...", "the same on several processes"),
)
FIELDS = "seed expect objective pretrain init_from resume fix"
OTHERS = (
    "What an option is, and its fields: --help clip, --help clip=zclip.",
    "The composed configuration: --cfg job.",
    "Your own configurations: --config-dir FOLDER.",
    "Hydra's own flags: --hydra-help.",
    'Completion in bash: eval "$(python -m gradlab --shell-completion install=bash)".',
)

BASH = """\
_gradlab_completion() {
    local words=($COMP_LINE) command="gradlab" line="$COMP_LINE"
    if [[ "${words[0]}" == *python* ]]; then
        [[ "${words[1]} ${words[2]}" == "-m gradlab" ]] || return
        command="${words[0]} -m gradlab" line="gradlab${COMP_LINE#*-m gradlab}"
    fi
    local choices=$(COMP_LINE="$line" $command --shell-completion query=bash 2> /dev/null)
    COMPREPLY=($(compgen -W "$choices" -- "${COMP_WORDS[COMP_CWORD]}"))
}
COMP_WORDBREAKS=${COMP_WORDBREAKS//=}
complete -o nospace -o default -F _gradlab_completion gradlab python python3"""
"""What `--shell-completion install=bash` prints, for `eval`: it completes `gradlab ...` and `python -m gradlab ...`.
Hydra's own completes the first of them alone."""


def help_on(arguments: list[str]) -> str:
    """The help on the groups and options among the arguments; on the command, where there is none."""
    asked = [argument.removeprefix("+").partition("=") for argument in arguments if not argument.startswith("-")]
    known = [(group, name) for group, _, name in asked if group in components.groups() and group not in APPENDED]
    if not known:
        return help_text()
    from gradlab.base.lazy import lazy_import

    lazy_import("torch")
    from gradlab.base.suggestions import did_you_mean
    from gradlab.config.reference import in_terminal

    columns = shutil.get_terminal_size().columns
    parts = []
    for group, name in known:
        found = in_terminal(group, name, columns)
        if not found:
            parts.append(
                f"{group}={name}: no such option{did_you_mean(name, components.names(group))}; all of {group}:"
            )
        parts.append(found or in_terminal(group, "", columns))
    return "\n\n".join(parts)


def help_text() -> str:
    """From the text of files alone: no import of Hydra or PyTorch."""
    columns = shutil.get_terminal_size().columns
    groups = {group: components.names(group) for group in components.groups() if group not in APPENDED}
    width = max(map(len, groups))
    lines = ["gradlab: a laboratory for gradient failures.", "", *described(columns)]
    lines += ["", *wrapped("Groups (choose with group=option, change with group.field=value):", columns)]
    for group, names in groups.items():
        if names:
            lines += wrapped(f"  {group:{width}}  {' '.join(names)}", columns, indent=width + 4)
    lines += ["", "Appended with a plus:"]
    for group in APPENDED:
        lines += wrapped(f"  +{group + '=':{width}} {' '.join(components.names(group))}", columns, indent=width + 4)
    launchers = ",".join(("basic", "vectorized", *EXTRAS))
    lines += ["", *wrapped(f"Where the jobs of a sweep run: hydra/launcher={launchers}", columns)]
    lines += wrapped(f"Other fields: {FIELDS}", columns)
    for sentence in OTHERS:
        lines += wrapped(sentence, columns)
    codes = "0 ended as expected, 1 failed or something else was seen, 2 the command was wrong, 130 interrupted"
    return "\n".join([*lines, *wrapped(f"Exit code: {codes}.", columns)])


def described(columns: int) -> Iterator[str]:
    """The commands and what they do, beside each other where the terminal is wide enough for all of them."""
    at = max(len(command) for command, _ in COMMANDS) + 4
    beside = columns >= at + max(len(what) for _, what in COMMANDS)
    for command, what in COMMANDS:
        if beside:
            yield f"  {command}".ljust(at) + what
        else:
            yield from wrapped(f"  {command}", columns, indent=6)
            yield from wrapped(f"      {what}", columns, indent=6)
