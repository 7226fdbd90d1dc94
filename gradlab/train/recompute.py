"""`trainer.checkpoint_blocks`: activation checkpointing of any model (Chen et al., arXiv:1604.06174)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from gradlab.base.option import Invalid
from gradlab.base.visible import listed

FIELD = "trainer.checkpoint_blocks"


def matching(field: str, pattern: str, names: Sequence[str]) -> list[str]:
    """The names that a regular expression matches as a whole; `Invalid` where there is none."""
    try:
        found = [name for name in names if re.fullmatch(pattern, name)]
    except re.error as error:
        raise Invalid(field, pattern, f"must be a regular expression: {error}") from None
    if not found:
        raise Invalid(field, pattern, f"is the name of no module that is called; there are {listed(names, 8)}")
    return found


def recompute_(model: torch.nn.Module, pattern: str, called: Sequence[str]) -> None:
    """Have the modules whose names match compute their forward pass again in the backward pass.

    Dropout draws the same again. Hooks, of FSDP too, stay outside: they see one call. A block within a block is
    computed again with it, not by itself.
    """
    blocks: list[str] = []
    for name in matching(FIELD, pattern, [name for name in called if name]):
        if any(name.startswith(f"{block}.") for block in blocks):
            continue
        block = model.get_submodule(name)
        for inner, module in block.named_modules(prefix=name):
            if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and module.track_running_stats:
                why = f"must not match batch norm ({inner}): its running statistics would be updated twice"
                raise Invalid(FIELD, pattern, why)
        blocks.append(name)
        block.forward = Recomputed(block.forward)  # type: ignore[method-assign]


class Recomputed:
    """A module's forward pass, computed again in the backward pass where it trains."""

    def __init__(self, forward: Any) -> None:
        self.forward = forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and self.forward.__self__.training:
            return checkpoint(self.forward, *args, use_reentrant=False, **kwargs)
        return self.forward(*args, **kwargs)
