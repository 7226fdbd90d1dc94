"""A launcher that trains jobs which differ in numbers only as lanes of one program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from gradlab.sweep.vectorized.options import VectorizedOption

ConfigStore.instance().store(group="hydra/launcher", name="vectorized", node=VectorizedOption, provider="gradlab")


class VectorizedLauncher(Launcher):
    """Composes all jobs, trains those that can be lanes together, and the others one by one."""

    def __init__(self, **settings: Any) -> None:
        self.option = VectorizedOption(**settings)

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from gradlab.sweep.grid.config_loader import SweepConfigLoader

        self.loader = SweepConfigLoader(hydra_context.config_loader)
        # The sweeper checks every job by composing it, with the loader of this context.
        hydra_context.config_loader = self.loader  # type: ignore[assignment]
        self.context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from gradlab.report.views import VIEWS
        from gradlab.sweep.vectorized.launch import SweepContext, launch

        context = SweepContext(self.option, self.config, self.loader, self.context, self.task_function, VIEWS)
        return launch(context, job_overrides, initial_job_idx)
