"""Text for a byte-level language model: Python's standard library, which needs no download, or the user's own files.

The target of each byte is the next one (T in a window). Results differ slightly between versions of Python, whose
libraries differ.
"""

from __future__ import annotations

import os
import sysconfig
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

import torch

from gradlab.base.option import Invalid, at_least, option, require
from gradlab.data.base import Data, Splits, TokenSplit, check_seed, generator
from gradlab.data.spec import Spec

SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "ensurepip"}
TEST = 0.1
"""Fraction of the bytes, the last ones, that are the test set."""


@option("data", "text")
@dataclass
class TextData(Data):
    """Windows of T bytes (a vocabulary of 256) of a text; the last tenth of the text is the test set."""

    path: Optional[str] = None
    """A file, or a folder whose text files are read in the order of their paths; null: Python's standard library."""
    suffixes: list[str] = field(default_factory=list)
    """Endings of the files to read; empty: .py in the standard library, every text file in a folder."""
    max_bytes: int = 2_000_000
    """Bytes of the text to use."""
    offset: float = 0.0
    """Where in the text to begin, as a fraction of it: for fine-tuning on another part than pretraining."""
    length: int = 64
    """T, bytes of a window."""
    stride: Optional[int] = None
    """Bytes between the starts of two windows; null: length, so that each byte is predicted once."""
    variable_length: bool = False
    """Whether windows have random lengths and are padded with targets that do not count."""
    min_length: int = 1
    """Shortest window, with variable_length."""
    samples: Optional[int] = None
    """Training windows to use, drawn from all; null: all."""
    test_samples: Optional[int] = 512
    """Test windows to use, drawn from all; null: all."""
    seed: int = 0
    """Decides which windows are drawn, and their lengths."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, max_bytes=1, length=1, stride=1, samples=1, test_samples=1)
        require(0 <= self.offset < 1, "offset", self.offset, "in [0, 1)")
        fits = 1 <= self.min_length <= self.length
        require(fits, "min_length", self.min_length, f"in [1, length={self.length}]")
        check_seed(self.seed)

    def load(self, device: torch.device) -> Splits:
        text = read(self.files(), self.offset, self.max_bytes)
        cut = len(text) - int(TEST * len(text))
        source = "path" if self.path else "max_bytes"
        given = self.path or self.max_bytes
        if cut <= self.length:
            needs = f"one window needs {self.length + 1} (length + 1)"
            raise Invalid(source, given, f"has {cut} bytes of text to train on, but {needs}")
        tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(device)  # (L,)
        draw = generator(self.seed)
        train = self.windows(tokens[:cut], self.samples, draw)
        test = self.windows(tokens[cut:], self.test_samples, draw) if len(text) - cut > self.length else None
        return Splits(train, test, Spec("tokens", (self.length,), "tokens", 256, vocabulary=256), "text")

    def files(self) -> list[Path]:
        """The files to read, in the order of their paths."""
        if self.path is None:
            root = Path(sysconfig.get_paths()["stdlib"])
            return walk(root, tuple(self.suffixes or [".py"]), SKIPPED)
        root = Path(self.path).expanduser()
        if not root.exists():
            raise Invalid("path", self.path, f"there is no such file or folder (in {os.getcwd()})")
        files = walk(root, tuple(self.suffixes or [""]), set()) if root.is_dir() else [root]
        if root.is_dir() and not self.suffixes:
            files = [file for file in files if is_text(file)]
        if not files:
            message = f"has no file that ends in {' or '.join(self.suffixes)}" if self.suffixes else "has no text file"
            raise Invalid("path", self.path, message)
        return files

    def windows(self, tokens: torch.Tensor, samples: int | None, draw: torch.Generator) -> TokenSplit:
        """Windows of tokens (L,): all of them, or `samples` drawn at random."""
        starts = torch.arange(0, tokens.shape[0] - self.length, self.stride or self.length)  # (N,)
        if samples is not None and samples < starts.shape[0]:
            starts = starts[torch.randperm(starts.shape[0], generator=draw)[:samples].sort().values]
        lengths = None
        if self.variable_length:
            lengths = torch.randint(self.min_length, self.length + 1, starts.shape, generator=draw).to(tokens.device)
        return TokenSplit(tokens, starts.to(tokens.device), self.length, lengths)


def walk(root: Path, suffixes: tuple[str, ...], skipped: set[str]) -> list[Path]:
    """Files below a folder with these suffixes, in the order of their paths, without hidden ones and __pycache__."""
    files = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [s for s in subfolders if s not in skipped | {"__pycache__"} and not s.startswith(".")]
        files += [Path(folder, name) for name in names if name.endswith(suffixes) and not name.startswith(".")]
    return sorted(files, key=lambda file: file.relative_to(root).as_posix())


def is_text(file: Path) -> bool:
    """Whether the first bytes hold no NUL, which is Git's test."""
    try:
        with file.open("rb") as opened:
            return b"\0" not in opened.read(8192)
    except OSError:
        return True  # `read` reports the error


def read(files: list[Path], offset: float, max_bytes: int) -> bytes:
    """Up to max_bytes of the files, one after the other, from the fraction `offset` of the whole on."""
    sizes = [file.stat().st_size if file.is_file() else 0 for file in files]
    skip = int(offset * sum(sizes))
    text, failed = bytearray(), []
    for file, size in zip(files, sizes, strict=True):
        if skip < size and len(text) < max_bytes:
            try:
                with file.open("rb") as opened:
                    opened.seek(skip)
                    text += opened.read(max_bytes - len(text))
            except OSError as error:
                failed.append(f"{file}: {error.strerror}")
        skip = max(0, skip - size)
    if failed:
        warnings.warn(f"{len(failed)} of {len(files)} files cannot be read, the first is {failed[0]}", stacklevel=2)
    return bytes(text)
