"""A callback for the Trainer of Hugging Face."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from gradlab.integrations.held import Held


class TransformersWatch(TrainerCallback):
    """Watches the training; arguments are those of `gradlab.watch` beside model, optimizer, scaler and schedule."""

    def __init__(self, **given: Any) -> None:
        self.held = Held(**given)

    @property
    def watch(self) -> Any:
        """Of the latest training."""
        return self.held.watch

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        optimizer = parts["optimizer"]
        scaler = getattr(optimizer, "scaler", None)  # Accelerate's wrapper has it
        self.held.begin(parts["model"], optimizer, scaler, parts.get("lr_scheduler"))

    def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self.held.end()
