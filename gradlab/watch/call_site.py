"""The line of the user's program that a call comes from."""

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

CallSite = tuple[CodeType, int]
"""Code object and line number of a call."""

CallPath = tuple[tuple[CodeType, int, int], ...]
"""Code objects, line numbers and instructions of calls, the innermost first."""

USER, LIBRARY, INTERNAL = range(3)
"""Where a source file belongs: to the user, to an installed library, or to PyTorch and this package."""
OWN = f"{Path(__file__).parents[1]}{os.sep}"
"""Beginning of the names of this package's files."""
WRAPPERS = ("_tensor.py", "overrides.py", "contextlib.py")
"""Files of what stands around each method of a tensor."""
ORIGINS: dict[str, int] = {}
"""File name -> USER, LIBRARY or INTERNAL, as far as it was asked for."""


@functools.cache
def internal_and_library_folders() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Prefixes of file names of PyTorch and this package, and of the standard library and installed packages."""
    spec = find_spec("torch")
    torch = [f"{Path(spec.origin).parent}{os.sep}"] if spec and spec.origin else []
    internal = (*torch, f"{Path(__file__).parents[1]}{os.sep}", contextlib.__file__, "<frozen", "<eval_with_key>")
    paths = sysconfig.get_paths()
    return internal, tuple({f"{paths[name]}{os.sep}" for name in ("stdlib", "purelib", "platlib")})


def origin(file: str) -> int:
    """USER, LIBRARY or INTERNAL."""
    if file not in ORIGINS:
        internal, libraries = internal_and_library_folders()
        ORIGINS[file] = INTERNAL if file.startswith(internal) else LIBRARY if file.startswith(libraries) else USER
    return ORIGINS[file]


def call_site() -> CallSite | None:
    """The innermost frame in the user's code; if there is none, the innermost frame in a library."""
    frame, library = sys._getframe(1), None
    while frame is not None:
        file = frame.f_code.co_filename
        where = ORIGINS[file] if file in ORIGINS else origin(file)
        if where == USER:
            return frame.f_code, frame.f_lineno
        if where == LIBRARY and library is None:
            library = frame.f_code, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return library


def is_direct() -> bool:
    """Whether the user's own line makes the call that is followed, and no function of PyTorch on its behalf."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(OWN) and not file.endswith(WRAPPERS):
            return origin(file) == USER
        frame = frame.f_back  # type: ignore[assignment]
    return False


def call_stack() -> tuple[CallSite, ...]:
    """The lines of the user's functions that are running, the innermost first."""
    frame, found = sys._getframe(1), []
    while frame is not None:
        if origin(frame.f_code.co_filename) == USER:
            found.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(found)


def call_path() -> CallPath:
    """The user's calls that are running: the same ones in each round of a loop."""
    frame, found = sys._getframe(1), []
    while frame is not None:
        if origin(frame.f_code.co_filename) == USER:
            found.append((frame.f_code, frame.f_lineno, frame.f_lasti))
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(found)


def is_running(site: CallSite | None) -> bool:
    """Whether the function of a line is running; if it is unknown, it may be."""
    return site is None or any(code is site[0] for code, _ in call_stack())


def definition_site(function: Any) -> CallSite | None:
    """The first line of a function or method; None if it is not the user's."""
    code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)
    return None if code is None or origin(code.co_filename) != USER else (code, code.co_firstlineno)


def format_site(site: CallSite | None) -> str:
    """file:line, relative if the file is below the current folder."""
    if site is None:
        return "?"
    name = site[0].co_filename
    with contextlib.suppress(ValueError, OSError):
        name = str(Path(name).relative_to(Path.cwd()))
    return f"{name}:{site[1]}"
