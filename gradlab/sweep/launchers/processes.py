"""Jobs of a sweep in processes of their own: joblib's, and submitit's here or on a cluster."""

from __future__ import annotations

import os
import sys
import threading
import time

from omegaconf import DictConfig

PARENT = os.getppid()
"""The process that started this one."""
BEGAN: int | None = None
"""The process that began the sweep under way, where it is this one."""


def launcher() -> str:
    """Name of the launcher of the job under way if another process began the sweep; else nothing."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    hydra = HydraConfig.get()
    return (
        "" if os.getpid() == BEGAN or hydra.mode != RunMode.MULTIRUN else str(hydra.runtime.choices["hydra/launcher"])
    )


def enter() -> None:
    """What a process of its own does before each job."""
    if not launcher():
        return
    if launcher() == "joblib" and not any(t.name == follow.__name__ for t in threading.enumerate()):
        threading.Thread(target=follow, name=follow.__name__, daemon=True).start()
    sys.stdout.isatty = lambda: False  # type: ignore[method-assign]  # jobs side by side would draw over each other


def follow() -> None:
    """End with the process that started this one: joblib's would wait for ever, with all that they hold in memory."""
    while os.getppid() == PARENT:
        time.sleep(0.5)
    os._exit(1)


def threads() -> int | None:
    """CPU threads of a job that names none; null: PyTorch's choice. joblib shares out the cores by itself."""
    from hydra.core.hydra_config import HydraConfig

    if not launcher().startswith("submitit"):
        return None
    return HydraConfig.get().launcher.cpus_per_task or (1 if launcher() == "submitit_local" else None)


def progress(mode: str) -> str:
    """What a job says as it goes: nothing where several write to one terminal; submitit's each have a file."""
    return "none" if mode == "auto" and launcher() == "joblib" else mode


def prepare(config: DictConfig) -> None:
    """Of a sweep that begins. submitit_local starts all jobs at once: it gets as many as there are cores for."""
    global BEGAN
    BEGAN = os.getpid()
    name, sweeper = config.hydra.runtime.choices["hydra/launcher"], config.hydra.sweeper
    if name == "submitit_local" and sweeper.get("max_batch_size", 0) is None:
        cores = len(os.sched_getaffinity(0))
        sweeper.max_batch_size = max(1, cores // (config.hydra.launcher.cpus_per_task or 1))
