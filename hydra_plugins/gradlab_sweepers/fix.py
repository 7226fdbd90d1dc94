"""`hydra/sweeper=fix`, which `python -m gradlab.fix` runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from gradlab.sweep.search.options import FixOption
from hydra_plugins.gradlab_sweepers.base import RoundSweeper

if TYPE_CHECKING:
    from gradlab.sweep.grid.axes import Point
    from gradlab.sweep.search.rounds import Search

ConfigStore.instance().store(group="hydra/sweeper", name="fix", node=FixOption, provider="gradlab")


class FixSweeper(RoundSweeper):
    """The smallest change that cures the run that fix.json in the sweep's folder names."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)
        self.folder = Path(config.hydra.sweep.dir)
        assert self.launcher is not None
        self.launcher.launch = quiet(self.launcher.launch, self.folder / "fix.log")  # type: ignore[method-assign]

    def search(self, points: Sequence[Point]) -> Search:
        from gradlab.sweep.search import fix_plan
        from gradlab.sweep.search.fix_search import FixSearch
        from gradlab.sweep.search.fix_trial import Trial

        limit, began = self.option(FixOption).seconds, time.monotonic()

        def say(t: Trial) -> None:
            made = "unchanged" if t.change is None else " ".join(t.change.overrides)
            print(f"  {made} (seed {t.seed}): {t.said}, {t.attempts} updates", flush=True)

        def late() -> bool:
            return limit is not None and time.monotonic() - began > limit

        return FixSearch(fix_plan.from_dict(fix_plan.kept(self.folder)["plan"]), late, say)

    def report(self, search: Any, folder: Path, ended: str | None) -> None:
        from gradlab.sweep.search import fix_report

        fix_report.report(folder, search, ended)


def quiet(launch: Callable[..., Any], log: Path) -> Callable[..., Any]:
    """What jobs print goes into a file."""

    def launched(*arguments: Any) -> Any:
        with log.open("a", encoding="utf-8", buffering=1) as file, redirect_stdout(file), redirect_stderr(file):
            return launch(*arguments)

    return launched
