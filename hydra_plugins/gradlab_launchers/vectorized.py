"""A launcher that trains jobs which differ in numbers only as lanes of one program.

Hydra loads this file in a way in which a dataclass cannot have annotations that are text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


@dataclass
class VectorizedConf:
    """hydra.launcher of hydra/launcher=vectorized."""

    _target_: str = "hydra_plugins.gradlab_launchers.vectorized.VectorizedLauncher"
    workers: Optional[int] = None
    """Processes that train; null: one a core. 0: the one that launches trains itself, as always on a CUDA device."""
    lanes: Optional[int] = None
    """Runs in one program at most; null: as many as fit the processor's cache or the device's memory."""
    memory: Optional[float] = None
    """GiB that the lanes of all processes may take together; null: half of what is free."""


ConfigStore.instance().store(group="hydra/launcher", name="vectorized", node=VectorizedConf, provider="gradlab")


class VectorizedLauncher(Launcher):
    """Composes all jobs, trains those that can be lanes together, and the others one by one."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from gradlab.sweep.grid.composer import Composer

        # The sweeper checks every job by composing it, with this very loader.
        hydra_context.config_loader = Composer(hydra_context.config_loader)  # type: ignore[assignment]
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from gradlab.report.pages.run_page import finished
        from gradlab.sweep.vectorized.launch import launch

        return launch(self, job_overrides, initial_job_idx, finished)
