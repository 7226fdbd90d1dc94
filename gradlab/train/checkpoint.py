"""Checkpoints, written whole or not at all, and loaded without running code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from gradlab.base.option import Invalid


def save(path: Path, state: dict[str, Any]) -> None:
    """Write to a temporary file beside it, flush to disk, then rename: a kill at any moment leaves the old or the new.

    What a kill leaves of the temporary file, the next save overwrites.
    """
    temporary = path.with_name(f".{path.name}.partial")
    try:
        with temporary.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def load(field: str, path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Load a checkpoint's tensors and plain values; `Invalid` names the field that pointed to it."""
    if not path.is_file():
        raise Invalid(field, path, "no such file")
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
        return state
    except Exception as error:
        raise Invalid(field, path, f"cannot be read as a checkpoint ({str(error).splitlines()[0]})") from error
