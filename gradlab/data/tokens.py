"""Tokens in files of any size, of which only what is needed is read: nanoGPT's .bin, or NumPy arrays (.npy)."""

from __future__ import annotations

import bisect
import glob
import os
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Optional

import torch

from gradlab.base.limits import MOST_AT_ONCE
from gradlab.base.option import Invalid, at_least, one_of, option, require
from gradlab.data.base import Data, Splits
from gradlab.data.batch_format import BatchFormat
from gradlab.data.reader import Reader, stacked
from gradlab.data.spec import Spec
from gradlab.data.stream import DataStream, Loading


@option("data", "tokens")
@dataclass
class TokensData(Data):
    """Windows of T tokens of a file, and the next token of each as its target; nothing but these is read."""

    path: str = ""
    """The tokens to train on: train.bin of nanoGPT, a .npy of one dimension, or many, as "folder/*.bin", one after
    the other in the order of their names."""
    test_path: Optional[str] = None
    """Those to test on, such as val.bin; null: no test set."""
    dtype: str = "uint16"
    """Type of a token in a .bin."""
    length: int = 64
    """T, tokens of a window."""
    vocabulary: int = 50257
    """Number of tokens that there are."""
    samples: Optional[int] = None
    """Training windows of an epoch, the first ones; null: all."""
    test_samples: Optional[int] = 512
    """Test windows, at even distances; null: all."""
    workers: int = 0
    """Processes that read ahead, of each rank; 0: the run itself reads."""
    prefetch: int = 2
    """Micro-batches that each worker reads ahead."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("dtype", self.dtype, ("uint8", "uint16", "uint32", "int32", "int64"))
        at_least(self, length=1, vocabulary=1, samples=1, test_samples=1, prefetch=1)
        require(0 <= self.workers <= MOST_AT_ONCE, "workers", self.workers, f"in [0, {MOST_AT_ONCE}]")

    def load(self, device: torch.device) -> Splits:
        require(bool(self.path), "path", self.path or "(empty)", "a file of tokens")
        batch_format = BatchFormat("tokens", "tokens")
        loading = Loading(self.workers, self.prefetch, device.type == "cuda")
        splits = []
        for field, path, most in (("path", self.path, self.samples), ("test_path", self.test_path, self.test_samples)):
            if path is not None:
                windows = Windows(self.tokens(field, path), self.length, most, spread=field == "test_path")
                if not len(windows):
                    raise Invalid(field, path, f"has too few tokens for one window of {self.length + 1} (length + 1)")
                splits.append(
                    DataStream(Reader(windows, stacked), device, batch_format, loading, path, self.vocabulary)
                )
        spec = Spec("tokens", (self.length,), "tokens", self.vocabulary, self.vocabulary)
        return Splits(splits[0], splits[1] if len(splits) > 1 else None, spec, "tokens")

    def tokens(self, field: str, path: str) -> Tokens:
        """The tokens of the files that a path names."""
        wanted = str(Path(path).expanduser())
        names = sorted(glob.glob(wanted)) if glob.has_magic(wanted) and not Path(wanted).exists() else [wanted]
        require(bool(names), field, path, "the name of a file, or a pattern of some: no such file")
        return Tokens([self.file(field, name) for name in names])

    def file(self, field: str, name: str) -> TokenFile:
        import numpy as np

        try:
            found = np.load(name, mmap_mode="r") if name.endswith(".npy") else np.memmap(name, self.dtype, "r")
        except (OSError, ValueError) as error:
            raise Invalid(field, name, f"cannot be read: {' '.join(str(error).split())}") from error
        if found.ndim != 1 or found.dtype.kind not in "iu":
            raise Invalid(field, name, f"must hold integers in one row, but holds {found.dtype} {found.shape}")
        return TokenFile(name, str(found.dtype.str), found.offset, len(found))


@dataclass
class TokenFile:
    """Where tokens are in a file."""

    name: str
    dtype: str
    offset: int  # bytes
    length: int  # tokens


class Tokens:
    """(L,) the tokens of files, one after the other, of which slices are read.

    Not mapped into memory: pages that were read would stay in the process, up to the size of the files.
    """

    def __init__(self, files: list[TokenFile]) -> None:
        self.files = files
        self.ends = list(accumulate(file.length for file in files))
        self.opened: dict[int, int] = {}

    def __len__(self) -> int:
        return self.ends[-1]

    def __getitem__(self, part: slice) -> Any:
        import numpy as np

        at, end = part.start, min(part.stop, len(self))
        pieces = []
        while at < end:
            number = bisect.bisect_right(self.ends, at)
            stop = min(end, self.ends[number])
            pieces.append(self.read(number, at - self.ends[number], stop - at))
            at = stop
        return np.concatenate(pieces) if len(pieces) != 1 else pieces[0]

    def read(self, number: int, at: int, count: int) -> Any:
        """Tokens of a file, from one counted from its end."""
        import numpy as np

        file = self.files[number]
        if number not in self.opened:
            self.opened[number] = os.open(file.name, os.O_RDONLY)
        dtype = np.dtype(file.dtype)
        size, start = count * dtype.itemsize, file.offset + (file.length + at) * dtype.itemsize
        found = os.pread(self.opened[number], size, start)
        if len(found) != size:
            raise OSError(f"{file.name} has become shorter")
        return np.frombuffer(found, dtype)

    def __reduce__(self) -> Any:
        return Tokens, (self.files,)

    def __del__(self) -> None:
        for opened in self.opened.values():
            os.close(opened)


@dataclass
class Windows:
    """Windows of T + 1 tokens, as a map-style data set."""

    tokens: Tokens  # (L,)
    length: int  # T
    most: int | None
    spread: bool = False

    def __len__(self) -> int:
        all_of_them = max(0, (len(self.tokens) - 1) // self.length)
        return all_of_them if self.most is None else min(self.most, all_of_them)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        import numpy as np

        every = (len(self.tokens) - 1) // self.length // len(self) if self.spread else 1
        start = i * every * self.length
        window = torch.from_numpy(self.tokens[start : start + self.length + 1].astype(np.int64))
        return window[:-1], window[1:]
