"""Checkpoints, written whole or not at all, and loaded without running code."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from gradlab.base.errors import BAD_VALUES
from gradlab.base.option import Invalid
from gradlab.base.signals import handled


def save(path: Path, state: dict[str, Any]) -> None:
    """Write to a temporary file beside it, flush to disk, then rename: a kill at any moment leaves the old or the new.

    What a kill leaves of the temporary file, the next save overwrites.
    """
    temporary = path.with_name(f".{path.name}.partial")
    with interrupts_held():
        write(path, temporary, state)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait for the end: an exception in PyTorch's writer, which is C++, may abort the process."""
    held: list[tuple[int, Any]] = []
    numbers = [number for number in (signal.SIGINT, signal.SIGTERM) if callable(signal.getsignal(number))]
    with handled(dict.fromkeys(numbers, lambda *given: held.append(given))) as before:
        yield
    for number, frame in held:
        before[number](number, frame)  # type: ignore[misc, operator]


def write(path: Path, temporary: Path, state: dict[str, Any]) -> None:
    try:
        with temporary.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except RuntimeError as error:
        if isinstance(error.__context__, KeyboardInterrupt):  # which PyTorch's writer turns into an error of its own
            raise error.__context__ from None
        raise
    finally:
        temporary.unlink(missing_ok=True)


def load(field: str, path: Path, device: torch.device | str = "cpu", needed: Collection[str] = ()) -> dict[str, Any]:
    """Load a checkpoint's tensors and plain values; `Invalid` names the field that pointed to it.

    needed: the keys that it must have.
    """
    if not path.is_file():
        raise Invalid(field, path, "no such file")
    try:
        state: Any = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise Invalid(field, path, f"cannot be read as a checkpoint ({why})") from error
    if not isinstance(state, dict):
        raise Invalid(field, path, f"is no checkpoint: it holds a {type(state).__name__}")
    if missing := [name for name in needed if name not in state]:
        raise Invalid(field, path, f"lacks {', '.join(missing)}")
    return state


@contextmanager
def taken(field: str, path: Path) -> Iterator[None]:
    """Raise `Invalid`, in one line, where the block fails because of what a checkpoint holds."""
    try:
        yield
    except Invalid:
        raise
    except (*BAD_VALUES, RuntimeError) as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise Invalid(field, path, f"holds values that no checkpoint has ({why})") from error
