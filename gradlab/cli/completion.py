"""Completion in a shell, of `gradlab ...` and of `python -m gradlab ...`: Hydra's completes the first of them alone."""

from __future__ import annotations

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


def installed(overrides: list[str]) -> str | None:
    """What `--shell-completion install=bash` prints, for `eval`; None for anything else, which is Hydra's."""
    return BASH if overrides == ["install=bash"] else None
