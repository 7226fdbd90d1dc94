"""Muon for the matrices inside a model and AdamW for the rest, as one optimizer."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch


class MuonAdamW(torch.optim.Optimizer):
    """torch.optim.Muon for the groups whose `muon` is true, torch.optim.AdamW for the others; one state for all."""

    def __init__(self, params: Any, muon: dict[str, Any], adamw: dict[str, Any]) -> None:
        nothing = [torch.zeros(1, 1)]  # none can be made without a parameter; `step` gives each its groups
        self.parts = {True: torch.optim.Muon(nothing, **muon), False: torch.optim.AdamW(nothing, **adamw)}
        self.muon_eps = self.parts[True].defaults["eps"]
        super().__init__(params, self.parts[True].defaults | self.parts[False].defaults | {"muon": False})

    def divide(self, names: dict[torch.Tensor, str], others: Collection[torch.Tensor]) -> None:
        """Give matrices to Muon, but for `others`, and all else to AdamW. names: of all parameters."""
        kept, divided = {id(p) for p in others}, []
        for group in self.param_groups:
            for muon in (True, False):
                params = [p for p in group["params"] if muon == (p.dim() == 2 and id(p) not in kept)]
                own = {"params": params, "names": [names[p] for p in params], "muon": muon}
                divided += [group | own | ({"eps": self.muon_eps} if muon else {})] if params else []
        self.param_groups = divided

    @property
    def note(self) -> str:
        """Which matrices are Muon's."""
        named = [(n, p, g["muon"]) for g in self.param_groups for n, p in zip(g["names"], g["params"], strict=True)]
        rest = [name for name, p, muon in named if p.dim() == 2 and not muon]
        count = sum(muon for _, _, muon in named)
        return f"Muon steps {count} matrices, AdamW {', '.join([*rest, 'what is no matrix'])}"

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for muon, part in self.parts.items():
            part.state, part.param_groups = self.state, [g for g in self.param_groups if g["muon"] is muon]
            part.step()


def ends(model: torch.nn.Module, called: Sequence[str]) -> list[torch.nn.Parameter]:
    """A model's embeddings, and its head: the last matrix of those of its modules that run.

    called: the modules in the order in which they do.
    """
    kinds = torch.nn.Embedding, torch.nn.EmbeddingBag
    embeddings: list[Any] = [module.weight for module in model.modules() if isinstance(module, kinds)]
    own = [p for name in called for p in model.get_submodule(name).parameters(recurse=False)]
    return [*embeddings, *[p for p in own if p.dim() == 2][-1:]]
