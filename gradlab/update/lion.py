"""`optimizer=lion`; the arithmetic is in torch_optimizers.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gradlab.base.option import option
from gradlab.update.adam import BetasOption
from gradlab.update.optimizer import without_kernels


@option("optimizer", "lion")
@dataclass
class Lion(BetasOption):
    """Lion (Chen et al. 2023): the sign of a mean of gradients; its rate is a third to a tenth of AdamW's."""

    fuses = False
    lr: float = 1e-4
    weight_decay: float = 0.1
    beta2: float = 0.99
    """Decay of the mean that the next steps begin with; beta1 is that of this step."""

    def make(self, params: Any, shared: dict[str, Any]) -> torch.optim.Optimizer:
        from gradlab.update import torch_optimizers

        return torch_optimizers.Lion(params, betas=(self.beta1, self.beta2), **without_kernels(self, shared))
