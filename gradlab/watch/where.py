"""Where in a user's program a call comes from."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from types import CodeType
from typing import Any

Site = tuple[CodeType, int]
"""Code and line of a call."""


@functools.cache
def folders() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Whose frames are never the user's: PyTorch's and this package's; and where libraries are."""
    spec = find_spec("torch")
    torch = [f"{Path(spec.origin).parent}{os.sep}"] if spec and spec.origin else []
    never = (*torch, f"{Path(__file__).parents[1]}{os.sep}", contextlib.__file__, "<frozen", "<eval_with_key>")
    paths = sysconfig.get_paths()
    return never, tuple({f"{paths[name]}{os.sep}" for name in ("stdlib", "purelib", "platlib")})


FOREIGN: dict[str, int] = {}
"""File -> 0: the user's, 1: of a library, 2: of PyTorch or this package."""


def foreign(file: str) -> int:
    if file not in FOREIGN:
        never, libraries = folders()
        FOREIGN[file] = 2 if file.startswith(never) else int(file.startswith(libraries))
    return FOREIGN[file]


def site() -> Site | None:
    """The innermost call that is the user's; where all are of libraries, the innermost but PyTorch's."""
    frame, library = sys._getframe(1), None
    while frame is not None:
        whose = foreign(frame.f_code.co_filename)
        if not whose:
            return frame.f_code, frame.f_lineno
        if whose == 1 and library is None:
            library = frame.f_code, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return library


def written(function: Any) -> Site | None:
    """Where a function or method begins, if it is the user's."""
    code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)
    return None if code is None or foreign(code.co_filename) else (code, code.co_firstlineno)


def told(site: Site | None) -> str:
    """file:line, short where it is below the current folder."""
    if site is None:
        return "?"
    name = site[0].co_filename
    with contextlib.suppress(ValueError, OSError):
        name = str(Path(name).relative_to(Path.cwd()))
    return f"{name}:{site[1]}"
