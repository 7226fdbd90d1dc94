"""The module and the parameters of a model that may be compiled and wrapped in DDP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def trained_names(model: Any) -> list[str]:
    """Names of the parameters that need a gradient, of a model that may be compiled and wrapped in DDP."""
    return [name for name, p in named_weights(model) if p.requires_grad]


def named_weights(model: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
    return unwrapped(model).named_parameters()


def unwrapped(model: Any) -> torch.nn.Module:
    """The module of a model that may be compiled and wrapped in DDP."""
    module = model.module if hasattr(model, "no_sync") else model
    inner: torch.nn.Module = getattr(module, "_orig_mod", module)
    return inner
