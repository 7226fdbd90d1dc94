"""`optimizer=adafactor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gradlab.base.option import at_least, option, require
from gradlab.update.optimizer import OptimizerOption, without_kernels


@option("optimizer", "adafactor")
@dataclass
class Adafactor(OptimizerOption):
    """Adafactor (Shazeer and Stern 2018): second moments of matrices as a row and a column; its rate is relative."""

    fuses = shardable = False
    lr: float = 1e-2
    """Largest rate, times the root mean square of the parameter; less after 1 / lr^2 updates."""
    beta2_decay: float = -0.8
    """Exponent c in the decay of the mean of squared gradients after t updates, 1 - t^c."""
    d: float = 1.0
    """Bound of the root mean square of an update before its rate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.beta2_decay <= 0, "beta2_decay", self.beta2_decay, "<= 0")
        at_least(self, d=1)

    def make(self, params: Any, shared: dict[str, Any]) -> torch.optim.Optimizer:
        given = without_kernels(self, shared) | {"foreach": self.foreach}
        return torch.optim.Adafactor(params, beta2_decay=self.beta2_decay, d=self.d, **given)
