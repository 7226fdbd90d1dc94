"""What happened to the gradients of an optimizer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from gradlab.watch.graph import Weight
from gradlab.watch.where import Site

Found = tuple[str, "Site | None", str]
"""A mistake by its name, the place, details."""


@dataclass(eq=False)
class Backward:
    """One backward pass that added to an optimizer's gradients."""

    site: Site | None
    loss: Any
    """A number, or a () tensor on a device; None where it is no single number. Without the loss scale."""
    weight: Weight
    scaled: bool
    half: bool
    """Whether the forward pass before it was in fp16."""
    forwards: int
    """Forward passes of the model since the backward pass before."""
    forward: Site | None
    """Where the latest of them was called, if that was looked up."""
    synced: bool | None
    """Whether DDP averages over ranks after it; None without DDP."""
    scaler_updates: int
    types: set[torch.dtype] | None
    """In its graph; None where they are not known."""
    token: Any = None
    """Tells whether its graph is alive."""
    versions: dict[int, int] = field(default_factory=dict)
    """Optimizer -> version of a weight of its own, when it ran."""
    used: set[int] = field(default_factory=set)
    """Optimizers that have stepped on it."""


@dataclass
class Clip:
    """A call that clips."""

    site: Site | None
    held: int
    """Backward passes in the gradient at the time."""


@dataclass
class Move:
    """A move of a schedule."""

    schedule: int
    site: Site | None
    held: int
    """Unused backward passes in the gradient at the time."""
