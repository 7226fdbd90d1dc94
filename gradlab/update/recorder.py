"""The interface through which an update is recorded while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch

from gradlab.update.gradients import Gradients

Layers = dict[str, list[Any]]
"""Name -> one value a parameter; a module where the name begins with `activation/`, a recurrent one with `time/`.

None where there is no value.
"""


class Recorder:
    """Records nothing; the base of those that do. `Update` calls it in this order."""

    def forward(self, window: Sequence[Any] = ()) -> Any:
        """Context of the forward and backward passes of a window of micro-batches."""
        return nullcontext()

    def gradients(self, gradients: Gradients) -> None:
        """The true gradients, before noise and clipping."""

    def stepped(self) -> None:
        """After the optimizer's step, whether it was applied or skipped."""

    def pack(self) -> torch.Tensor:
        """Everything measured, in one float64 vector."""
        return torch.zeros(0, dtype=torch.float64)

    def unpack(self, values: list[float]) -> Layers:
        """What `pack` made, by name."""
        return {}

    def metrics(self) -> dict[str, float]:
        """Metrics of the update as a whole that are already on the host."""
        return {}


NOTHING = Recorder()
