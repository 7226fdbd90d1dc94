"""Files to audit: Python and notebooks, found in folders and read; a file that cannot be read has an error."""

from __future__ import annotations

import ast
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from gradlab.audit.finding import position
from gradlab.audit.source.settings import Excluded
from gradlab.audit.source.syntax import Nodes

SKIPPED = {"node_modules", "__pycache__", "venv", "env", "build", "dist", "site-packages"}
"""Folders that are passed over below a given one; a given one never is."""


@dataclass
class Source:
    path: Path
    text: str = ""
    tree: ast.Module | None = None
    error: tuple[int, int, str] | None = None  # line, column, message
    notes: list[tuple[int, str]] = field(default_factory=list)  # what of it was passed over, by line
    cells: list[tuple[int, int]] = field(default_factory=list)  # of a notebook: number and first line of each cell

    @cached_property
    def nodes(self) -> Nodes:
        return Nodes(self.tree)

    def cell(self, line: int) -> tuple[int, int]:
        """The cell of a notebook that a line is in, and which of its lines it is; 0 and the line itself elsewhere."""
        return next(((cell, line - first + 1) for cell, first in reversed(self.cells) if line >= first), (0, line))

    def place(self, line: int) -> str:
        return position(*self.cell(line))


def find(
    paths: list[Path],
    excluded: Excluded = lambda path: False,
    force: bool = False,
    unreadable: Callable[[OSError], None] | None = None,
) -> Iterator[Path]:
    """Files, and those below folders, each once.

    excluded: what is passed over below folders, with `force` among the paths themselves, too; unreadable: is called
    with the error of each folder that cannot be read.
    """
    met = set()
    for path in each([p for p in paths if not (force and excluded(str(p)))], excluded, unreadable):
        if (known := os.path.abspath(path)) not in met:
            met.add(known)
            yield path


def each(paths: list[Path], excluded: Excluded, unreadable: Callable[[OSError], None] | None) -> Iterator[Path]:
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        for folder, folders, files in os.walk(path, onerror=unreadable):
            folders[:] = sorted(
                name
                for name in folders
                if not name.startswith(".") and name not in SKIPPED and not excluded(os.path.join(folder, name))
                if not os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))
            )
            for name in sorted(files):
                wanted = name.endswith((".py", ".ipynb")) and not name.startswith(".")
                full = os.path.join(folder, name)
                if wanted and not excluded(full) and os.path.isfile(full):
                    yield Path(full)


def read(path: Path) -> Source:
    source = Source(path)
    try:
        raw = path.read_bytes()
        if path.suffix == ".ipynb":
            from gradlab.audit.source.notebooks import code_of

            code = code_of(decode(raw))
            source.text, source.cells, source.notes = code.text, code.cells, code.notes
            source.error = (1, 1, code.error) if code.error else None
        else:
            source.text = decode(raw)
        parse(source)
    except OSError as error:
        source.error = (1, 1, f"cannot be read: {error.strerror or error}")
    return source


def decode(raw: bytes) -> str:
    """The text in the encoding that a file declares, else in UTF-8; bytes that do not fit are replaced."""
    try:
        text = raw.decode(encoding_of(raw))
    except (SyntaxError, UnicodeDecodeError, LookupError):
        text = raw.decode("utf-8", errors="replace")
    return normalised(text)


def normalised(text: str) -> str:
    """Without a byte order mark, lines ended by LF alone."""
    return text.lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def encoding_of(raw: bytes) -> str:
    import io
    import tokenize

    return tokenize.detect_encoding(io.BytesIO(raw).readline)[0]


def parse(source: Source) -> None:
    if source.error:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            source.tree = ast.parse(source.text)
    except SyntaxError as error:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"  # a later Python may read more
        source.error = (error.lineno or 1, error.offset or 1, f"syntax error to Python {version}: {error.msg}")
    except (ValueError, RecursionError, MemoryError) as error:
        source.error = (1, 1, f"cannot be parsed: {error or type(error).__name__}")
