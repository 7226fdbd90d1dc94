"""What both sweepers share: jobs go to whichever launcher is configured, round by round, and finished ones are kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

if TYPE_CHECKING:
    from gradlab.sweep.grid.axes import Point
    from gradlab.sweep.search.options import Rounds
    from gradlab.sweep.search.rounds import Search

O = TypeVar("O", bound="Rounds")  # noqa: E741


class RoundSweeper(Sweeper):
    """Base of sweepers that ask for more jobs when they have seen the last ones."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.hydra_context: HydraContext | None = None
        self.config: DictConfig | None = None
        self.launcher: Launcher | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def search(self, points: Sequence[Point]) -> Search:
        """The search at these points of the other axes."""
        raise NotImplementedError

    def report(self, search: Any, folder: Path, ended: str | None) -> None:
        """Write and print the results. ended: why the search ended before it was done."""
        raise NotImplementedError

    def option(self, cls: type[O]) -> O:
        """The settings, checked."""
        from gradlab.base.option import Invalid

        settings: dict[str, Any] = {k: list(v) if OmegaConf.is_list(v) else v for k, v in self.settings.items()}
        try:
            return cls(**settings)
        except Invalid as error:
            raise Invalid(f"hydra.sweeper.{error.field}", error.given, error.allowed) from None

    def composed(self, field: str) -> Any:
        """What the configuration says of a field before anything is swept; None if it has no such field."""
        assert self.config is not None
        return OmegaConf.select(self.config, field, throw_on_missing=False)

    def sweep(self, arguments: list[str]) -> Any:
        from gradlab.base.distributed import world
        from gradlab.sweep.launchers.rounds import RoundLauncher
        from gradlab.sweep.search.rounds import conduct

        assert self.config is not None and self.launcher is not None
        search = self.search(self.points(arguments))
        folder, place = Path(self.config.hydra.sweep.dir), world()
        if place.main:
            folder.mkdir(parents=True, exist_ok=True)
            OmegaConf.save(self.config, folder / "multirun.yaml")
        launching = RoundLauncher(self.launcher.launch, self.validate_batch_is_legal, folder, place)

        def say(text: str) -> None:
            if place.main:
                print(text, flush=True)

        try:
            ended = conduct(search, launching.run, self.settings.get("max_runs"), say, launching.check_kinds)
        except KeyboardInterrupt:
            if place.main:
                self.report(search, folder, "it was interrupted")
            raise
        if place.main:
            self.report(search, folder, ended)
        return launching.returned

    def points(self, arguments: list[str]) -> list[Point]:
        """Every combination of the overrides, as Hydra's own sweeper makes them."""
        from gradlab.sweep.grid.jobs import combinations

        assert self.hydra_context is not None
        found = combinations(self.settings.get("params"), arguments, self.hydra_context.config_loader)
        return [tuple(point) for point in found]
