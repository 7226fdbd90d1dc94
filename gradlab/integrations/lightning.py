"""A callback for Lightning's Trainer."""

from __future__ import annotations

from typing import Any, Unpack

from gradlab.integrations.trainer_watch import TrainerWatch, WatchOptions

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback  # type: ignore[assignment]


class LightningWatch(Callback):
    """Watches the training; takes the arguments of `gradlab.watch` except model, optimizer, scaler and schedule."""

    def __init__(self, **options: Unpack[WatchOptions]) -> None:
        self.trainer_watch = TrainerWatch(**options)

    @property
    def watch(self) -> Any:
        """The watch of the latest training."""
        return self.trainer_watch.watch

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        schedules = [config.scheduler for config in trainer.lr_scheduler_configs]
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        parts = trainer.model, trainer.optimizers, scaler, schedules
        self.trainer_watch.begin(*parts, user_functions=[pl_module.training_step])

    def on_train_batch_start(self, *_: Any) -> None:
        if self.watch is not None:
            self.watch.loop.forwards.count += 1  # Lightning calls `training_step`, and not the module

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.trainer_watch.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.trainer_watch.end(exception)
