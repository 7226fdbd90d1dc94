"""`optimizer=muon`: Muon for the matrices inside a model and AdamW for the rest."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

import torch

from gradlab.base.option import Invalid, one_of, option, require
from gradlab.update.adam import AdamOption
from gradlab.update.groups import grouped
from gradlab.update.optimizer import OptimizerOption

if TYPE_CHECKING:
    from torch import Tensor  # at run time it would import what is imported lazily


@option("optimizer", "muon")
@dataclass
class Muon(AdamOption):
    """Muon (Jordan et al. 2024) for the matrices inside the model; AdamW for embeddings, the head and all else."""

    fuses = elementwise = shardable = False
    lr: float = 5e-3
    weight_decay: float = 0.1
    beta2: float = 0.95
    momentum: float = 0.95
    """Decay of the mean of gradients that Muon makes orthogonal."""
    nesterov: bool = True
    """Nesterov's momentum, of Muon."""
    ns_steps: int = 5
    """Newton-Schulz iterations that make a matrix orthogonal."""
    adjust: str = "match_rms_adamw"
    """Muon's updates are as large as AdamW's at the same rate (match_rms_adamw), or orthogonal, times
    sqrt(max(1, rows / columns)) (original) or sqrt(rows / columns) (spectral_unclamped); then lr_scale sets AdamW's."""
    adamw: Optional[str] = None
    """Pattern of the names of the matrices that AdamW steps; null: embeddings, and the last matrix that runs."""

    move_ = OptimizerOption.move_

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.momentum < 1, "momentum", self.momentum, "in [0, 1)")
        require(1 <= self.ns_steps < 100, "ns_steps", self.ns_steps, "in [1, 100)")
        one_of("adjust", self.adjust, ("match_rms_adamw", "original", "spectral_unclamped"))
        try:
            re.compile(self.adamw or "")
        except re.error as error:
            raise Invalid("adamw", self.adamw, f"must be a regular expression: {error}") from None

    def build(
        self, parameters: Iterable[torch.nn.Parameter], names: Sequence[str] = (), ends: Sequence[Tensor] = ()
    ) -> torch.optim.Optimizer:
        params = [p for p in parameters if p.requires_grad]
        names = names or [f"parameter{i}" for i in range(len(params))]
        return self.of_groups(grouped(self.groups, names), dict(zip(names, params, strict=True)), ends)

    def split_group(self, group: dict[str, Any], ends: Sequence[Tensor]) -> list[dict[str, Any]]:
        """Matrices are Muon's, but for embeddings and the head; all else is AdamW's."""
        outer, made = {id(p) for p in ends}, []
        for muon in (True, False):
            own = []
            for name, p in zip(group["names"], group["params"], strict=True):
                kept = id(p) in outer if self.adamw is None else re.search(self.adamw, name)
                if muon == (p.dim() == 2 and not kept):
                    own.append((name, p))
            if own:
                made.append(group | {"names": [name for name, _ in own], "params": [p for _, p in own], "muon": muon})
        return made

    def make(self, params: Any, shared: dict[str, Any]) -> torch.optim.Optimizer:
        from gradlab.update.joined_optimizers import Joined

        inner = [{k: v for k, v in group.items() if k != "eps"} for group in params if group["muon"]]  # it has its own
        rest, parts = [group for group in params if not group["muon"]], dict[bool, torch.optim.Optimizer]()
        if inner:
            own: Any = {"momentum": self.momentum, "nesterov": self.nesterov, "ns_steps": self.ns_steps}
            own |= {"lr": shared["lr"], "weight_decay": self.weight_decay}
            parts[True] = torch.optim.Muon(inner, adjust_lr_fn=self.adjust, **own)
        if rest:
            parts[False] = torch.optim.AdamW(rest, betas=(self.beta1, self.beta2), eps=self.eps, **shared)
        matrices = [name for group in rest for name, p in zip(group["names"], group["params"]) if p.dim() == 2]
        count = sum(len(group["params"]) for group in inner)
        others = f"{', '.join(matrices)} and what is no matrix" if matrices else "what is no matrix"
        note = f"optimizer=muon: Muon steps {count} matrices, AdamW {others}"
        return Joined(parts, "muon", note)


def ends(model: torch.nn.Module, called: Sequence[str]) -> list[torch.nn.Parameter]:
    """A model's embeddings, and its head: the last matrix of those of its modules that run.

    called: the modules in the order in which they do.
    """
    kinds = torch.nn.Embedding, torch.nn.EmbeddingBag
    embeddings: list[Any] = [module.weight for module in model.modules() if isinstance(module, kinds)]
    own = [p for name in called for p in model.get_submodule(name).parameters(recurse=False)]
    return [*embeddings, *[p for p in own if p.dim() == 2][-1:]]
