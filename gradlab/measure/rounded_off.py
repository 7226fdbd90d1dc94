"""Updates that change nothing: a step below half of the distance to the type's next number is rounded off.

bf16 has 8 bits: a weight moves if its step is at least 1/512 to 1/256 of it, where 1/1000 is usual.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

KEPT = 1024
"""Elements of a parameter that are compared with what they were some updates before."""


def narrow(tensor: torch.Tensor) -> bool:
    """Whether the type is one in which usual updates may be rounded off; fp32 loses none beyond 6e-8 of a weight."""
    return tensor.is_floating_point() and tensor.dtype.itemsize < 4 and not hasattr(tensor, "to_local")


def narrow_types(params: Iterable[torch.Tensor]) -> str:
    """The names of these types; empty where there is none."""
    return " and ".join(sorted({str(p.dtype).removeprefix("torch.") for p in params if narrow(p)}))


def given(grads: Sequence[torch.Tensor | None], device: torch.device | str = "cpu") -> torch.Tensor:
    """(P,) float64: elements of each parameter whose gradient is not zero."""
    counts = [torch.zeros((), device=device) if g is None else (g != 0).sum() for g in grads]
    return torch.stack(counts).double()


def rounded_off(
    moved: Sequence[torch.Tensor], grads: Sequence[torch.Tensor | None], device: torch.device | str = "cpu"
) -> torch.Tensor:
    """(P,) float64: elements that a step leaves bitwise unchanged though their gradient is not zero.

    moved: their change, in their own type, whose difference of unequal numbers is never zero.
    """
    pairs = zip(moved, grads, strict=True)
    counts = [torch.zeros((), device=device) if g is None else ((m == 0) & (g != 0)).sum() for m, g in pairs]
    return torch.stack(counts).double()


def some(tensor: torch.Tensor) -> torch.Tensor:
    """At most KEPT elements from all over a tensor, copied."""
    flat = tensor.detach().flatten()
    return flat[:: max(1, -(-flat.numel() // KEPT))].clone()


def still(before: Sequence[torch.Tensor], now: Sequence[torch.Tensor]) -> torch.Tensor:
    """(P,) float64: the share of those elements that are bitwise what they were."""
    return torch.stack([(a == b).double().mean() for a, b in zip(before, now, strict=True)])
