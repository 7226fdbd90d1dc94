"""A callback for Lightning's Trainer."""

from __future__ import annotations

from typing import Any

from gradlab.integrations.held import Held

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback  # type: ignore[assignment]


class LightningWatch(Callback):
    """Watches the training; arguments are those of `gradlab.watch` beside model, optimizer, scaler and schedule."""

    def __init__(self, **given: Any) -> None:
        self.held = Held(**given)

    @property
    def watch(self) -> Any:
        """Of the latest training."""
        return self.held.watch

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        schedules = [config.scheduler for config in trainer.lr_scheduler_configs]
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self.held.begin(trainer.model, trainer.optimizers, scaler, schedules, called=[pl_module.training_step])

    def on_train_batch_start(self, *_: Any) -> None:
        if self.watch is not None:
            self.watch.loop.passes.count += 1  # Lightning calls `training_step`, and not the module

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.held.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.held.end(exception)
