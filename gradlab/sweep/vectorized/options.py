"""The fields of `hydra/launcher=vectorized`. Imports neither Hydra nor PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional  # (omegaconf reads it)

from gradlab.base.limits import MOST_AT_ONCE
from gradlab.base.option import require


@dataclass
class VectorizedOption:
    """Jobs that differ in numbers only are trained together, as lanes of one program."""

    _target_: str = "hydra_plugins.gradlab_launchers.vectorized.VectorizedLauncher"
    workers: Optional[int] = None
    """Processes that train; null: one per core. 0: the launching process trains itself, as always on a CUDA device."""
    lanes: Optional[int] = None
    """Runs in one program at most; null: as many as fit the processor's cache or the device's memory."""
    memory: Optional[float] = None
    """GiB that the lanes of all processes may take together; null: half of what is free."""

    def check(self) -> None:
        """Raises `Invalid`. Not in `__post_init__`: the sweeper checks the jobs first."""
        for name, fits, allowed in (
            ("workers", self.workers is None or 0 <= self.workers <= MOST_AT_ONCE, f"null or in [0, {MOST_AT_ONCE}]"),
            ("lanes", self.lanes is None or self.lanes >= 1, "null or >= 1"),
            ("memory", self.memory is None or self.memory > 0, "null or > 0"),
        ):
            require(fits, f"hydra.launcher.{name}", getattr(self, name), allowed)
