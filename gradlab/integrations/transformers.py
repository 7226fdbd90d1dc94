"""A callback for the Trainer of Hugging Face."""

from __future__ import annotations

import sys
from typing import Any, Unpack

from transformers import Trainer, TrainerCallback

from gradlab.integrations.trainer_watch import TrainerWatch, WatchOptions


def calling_trainer() -> Any:
    """The trainer that calls the callback, which is not passed to it."""
    frame = sys._getframe(1)
    while frame is not None:
        if isinstance(found := frame.f_locals.get("self"), Trainer):
            return found
        frame = frame.f_back  # type: ignore[assignment]
    return None


class TransformersWatch(TrainerCallback):
    """Watches the training; takes the arguments of `gradlab.watch` except model, optimizer, scaler and schedule."""

    def __init__(self, **options: Unpack[WatchOptions]) -> None:
        self.trainer_watch = TrainerWatch(**options)

    @property
    def watch(self) -> Any:
        """The watch of the latest training."""
        return self.trainer_watch.watch

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        model, optimizer = parts["model"], parts["optimizer"]
        scaler = getattr(optimizer, "scaler", None)  # Accelerate's wrapper has it
        functions = [getattr(calling_trainer(), "compute_loss", None), model.forward]
        self.trainer_watch.begin(model, optimizer, scaler, parts.get("lr_scheduler"), user_functions=functions)

    def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self.trainer_watch.end()
