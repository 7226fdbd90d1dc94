"""What helps at the prompt: --help, --version, completion."""

import shutil
import subprocess
from pathlib import Path

import pytest
from forked import Commands

from gradlab import __version__
from gradlab.base import components

COMPLETE = r"""
eval "$(python -m gradlab --shell-completion install=bash)"
for line in "python -m gradlab model=l" "gradlab +experiment=fp16_c" "python train.py model="; do
    COMP_LINE="$line"; COMP_WORDS=($line); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()
    _gradlab_completion
    echo "$line: ${COMPREPLY[@]}"
done
"""


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_help_fits_the_terminal_and_names_every_option(gradlab: Commands, tmp_path: Path, columns: int) -> None:
    result = gradlab("--help", cwd=tmp_path, COLUMNS=str(columns))
    assert result.code == 0 and result.err == ""
    longest = max(len(word) for word in result.out.split())
    assert max(map(len, result.out.splitlines())) <= max(columns, longest + 4)
    words = set(result.out.split())
    for group in components.groups():
        assert set(components.names(group)) <= words, group


def test_version(gradlab: Commands, tmp_path: Path) -> None:
    result = gradlab("--version", cwd=tmp_path)
    assert (result.code, result.out) == (0, f"gradlab {__version__}\n")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_both_ways_to_start_gradlab(tmp_path: Path) -> None:
    (tmp_path / "gradlab").write_text('#!/bin/sh\nexec python -m gradlab "$@"\n')
    (tmp_path / "gradlab").chmod(0o755)
    script = f'PATH="{tmp_path}:$PATH"\n{COMPLETE}'
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [
        "python -m gradlab model=l: model=lstm",
        "gradlab +experiment=fp16_c: +experiment=fp16_collapse +experiment=fp16_collapse_pretrain",
        "python train.py model=: ",
    ], done
