"""Tokens in a file that is mapped into memory, of any size: nanoGPT's .bin, or a NumPy array (.npy)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import torch

from gradlab.base.option import MOST_AT_ONCE, Invalid, one_of, option, require
from gradlab.data.base import Data, Splits, at_least
from gradlab.data.meeting import Meeting
from gradlab.data.reader import Reader, stacked
from gradlab.data.spec import Spec
from gradlab.data.stream import Loading, Stream


@option("data", "tokens")
@dataclass
class TokensData(Data):
    """Windows of T tokens of a file, and the next token of each as its target; nothing but these is read."""

    path: str = ""
    """The tokens to train on: train.bin of nanoGPT, or a .npy of one dimension."""
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
        for name in ("length", "vocabulary", "samples", "test_samples", "prefetch"):
            at_least(name, getattr(self, name), 1)
        require(0 <= self.workers <= MOST_AT_ONCE, "workers", self.workers, f"in [0, {MOST_AT_ONCE}]")

    def load(self, device: torch.device) -> Splits:
        require(bool(self.path), "path", self.path or "(empty)", "a file of tokens")
        meeting = Meeting("tokens", "tokens")
        loading = Loading(self.workers, self.prefetch, device.type == "cuda")
        splits = []
        for field, path, most in (("path", self.path, self.samples), ("test_path", self.test_path, self.test_samples)):
            if path is not None:
                windows = Windows(self.tokens(field, path), self.length, most, spread=field == "test_path")
                if not len(windows):
                    raise Invalid(field, path, f"has too few tokens for one window of {self.length + 1} (length + 1)")
                splits.append(Stream(Reader(windows, stacked), device, meeting, loading, path, self.vocabulary))
        spec = Spec("tokens", (self.length,), "tokens", self.vocabulary, self.vocabulary)
        return Splits(splits[0], splits[1] if len(splits) > 1 else None, spec, "tokens")

    def tokens(self, field: str, path: str) -> Any:
        """(L,) the tokens of a file, in no memory until they are read."""
        import numpy as np

        file = Path(path).expanduser()
        try:
            found = np.load(file, mmap_mode="r") if file.suffix == ".npy" else np.memmap(file, self.dtype, "r")
        except (OSError, ValueError) as error:
            raise Invalid(field, path, f"cannot be read: {' '.join(str(error).split())}") from error
        if found.ndim != 1 or found.dtype.kind not in "iu":
            raise Invalid(field, path, f"must hold integers in one row, but holds {found.dtype} {found.shape}")
        return found


@dataclass
class Windows:
    """Windows of T + 1 tokens, as a map-style data set."""

    tokens: Any  # (L,) mapped
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
