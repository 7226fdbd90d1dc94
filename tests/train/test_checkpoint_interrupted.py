"""Ctrl-C at any moment at which a checkpoint is written: KeyboardInterrupt, and a whole one, older or new."""

import random
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from gradlab.train import checkpoint


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a file opened as it came
def test_an_interrupt_at_any_moment_leaves_the_older_checkpoint(tmp_path: Path) -> None:
    path, draw = tmp_path / "checkpoint.pt", random.Random(0)
    checkpoint.save(path, {"number": torch.tensor(0)})
    whole = path.read_bytes()
    large = {str(i): torch.ones(10_000) for i in range(100)}
    before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    interrupted = 0
    try:
        for _ in range(60):
            try:
                signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-4, 8e-3))
                checkpoint.save(path, large)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupted += 1
                assert path.read_bytes() == whole or torch.load(path).keys() == large.keys()
            path.write_bytes(whole)
            assert {p.name for p in tmp_path.iterdir()} <= {"checkpoint.pt", ".checkpoint.pt.partial"}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 20


def test_what_pytorchs_writer_makes_of_an_interrupt_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(state: Any, file: Any) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("unexpected pos 64 vs 0")

    monkeypatch.setattr(torch, "save", save)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(tmp_path / "checkpoint.pt", {})
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_waits_until_the_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception in the middle of PyTorch's writer, which is C++, can abort the process."""
    written = torch.save

    def save(state: Any, file: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        written(state, file)

    monkeypatch.setattr(torch, "save", save)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(tmp_path / "checkpoint.pt", {"number": 1})
    assert torch.load(tmp_path / "checkpoint.pt") == {"number": 1}
