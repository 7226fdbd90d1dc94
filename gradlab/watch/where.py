"""Where in a user's program a call comes from."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from types import CodeType

Site = tuple[CodeType, int]
"""Code and line of a call."""


@functools.cache
def folders() -> tuple[str, ...]:
    """Whose frames are nobody's program: PyTorch's and this package's."""
    spec = find_spec("torch")
    torch = [f"{Path(spec.origin).parent}{os.sep}"] if spec and spec.origin else []
    return (*torch, f"{Path(__file__).parents[1]}{os.sep}", contextlib.__file__, "<frozen", "<eval_with_key>")


FOREIGN: dict[str, bool] = {}


def foreign(file: str) -> bool:
    if file not in FOREIGN:
        FOREIGN[file] = file.startswith(folders())
    return FOREIGN[file]


def site() -> Site | None:
    """The innermost call that is the user's."""
    frame = sys._getframe(1)
    while frame is not None:
        if not foreign(frame.f_code.co_filename):
            return frame.f_code, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return None


def told(site: Site | None) -> str:
    """file:line, short where it is below the current folder."""
    if site is None:
        return "?"
    name = site[0].co_filename
    with contextlib.suppress(ValueError, OSError):
        name = str(Path(name).relative_to(Path.cwd()))
    return f"{name}:{site[1]}"
