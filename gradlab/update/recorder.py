"""What an update calls while it runs, so that it can be recorded."""

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
        """The optimizer has moved the weights, or has not."""

    def pack(self) -> torch.Tensor:
        """All that was measured, in one float64 vector."""
        return torch.zeros(0, dtype=torch.float64)

    def unpack(self, values: list[float]) -> Layers:
        """What `pack` made, by name."""
        return {}

    def metrics(self) -> dict[str, float]:
        """What was measured of the update as a whole, and is on the host."""
        return {}


NOTHING = Recorder()
