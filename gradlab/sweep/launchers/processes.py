"""Jobs of a sweep in other processes: joblib's, and submitit's on this machine or a cluster."""

from __future__ import annotations

import os
import sys
from typing import Any

from omegaconf import DictConfig

from gradlab.base.lazy import lazy_import
from gradlab.base.parent_process import end_with_parent

BEGAN: int | None = None
"""This process, if it started the running sweep."""


def launcher() -> str:
    """The launcher's name if another process started the sweep of the running job; else empty."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    hydra = HydraConfig.get()
    return (
        "" if os.getpid() == BEGAN or hydra.mode != RunMode.MULTIRUN else str(hydra.runtime.choices["hydra/launcher"])
    )


def enter() -> None:
    """Prepare a launched process for its next job."""
    if not launcher():
        return
    lazy_import("torch._dynamo")
    sys.stdout.isatty = lambda: False  # type: ignore[method-assign]  # jobs side by side would draw over each other


def threads() -> int | None:
    """CPU threads of a job that names none; null: PyTorch's choice. joblib divides the cores itself."""
    from hydra.core.hydra_config import HydraConfig

    if not launcher().startswith("submitit"):
        return None
    return HydraConfig.get().launcher.cpus_per_task or (1 if launcher() == "submitit_local" else None)


def progress(mode: str) -> str:
    """The job's progress mode: none where several jobs share a terminal; with submitit each has a file."""
    return "none" if mode == "auto" and launcher() == "joblib" else mode


def prepare(config: DictConfig) -> None:
    """Called when a sweep starts. submitit_local starts all jobs at once, so it is given one batch per set of cores."""
    global BEGAN
    BEGAN = os.getpid()
    name, sweeper = config.hydra.runtime.choices["hydra/launcher"], config.hydra.sweeper
    if name == "joblib":
        followed()
    if name == "submitit_local" and sweeper.get("max_batch_size", 0) is None:
        cores = len(os.sched_getaffinity(0))
        sweeper.max_batch_size = max(1, cores // (config.hydra.launcher.cpus_per_task or 1))


def followed() -> None:
    """Have joblib's workers end with this process, those too that were given no job: they would wait for minutes."""
    from joblib.parallel import LokyBackend, register_parallel_backend

    class Followed(LokyBackend):  # type: ignore[misc]
        def configure(self, *args: Any, **settings: Any) -> Any:
            return super().configure(*args, initializer=end_with_parent, initargs=(os.getpid(),), **settings)

    register_parallel_backend("loky", Followed)
