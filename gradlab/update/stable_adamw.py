"""`optimizer=stable_adamw`; the arithmetic is in torch_optimizers.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gradlab.base.option import option
from gradlab.update.adam import AdamOption
from gradlab.update.optimizer import OptimizerOption, without_kernels


@option("optimizer", "stable_adamw")
@dataclass
class StableAdamW(AdamOption):
    """AdamW of which each tensor's step is shorter where its gradients have suddenly grown (Wortsman et al. 2023)."""

    fuses = elementwise = shardable = False
    weight_decay: float = 0.01
    beta2: float = 0.99

    move_ = OptimizerOption.move_

    def make(self, params: Any, shared: dict[str, Any]) -> torch.optim.Optimizer:
        from gradlab.update import torch_optimizers

        return torch_optimizers.StableAdamW(
            params, betas=(self.beta1, self.beta2), eps=self.eps, **without_kernels(self, shared)
        )
