"""Measuring gradients: pure functions of tensors. Clipping, monitor and non-finite check share one read."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

SQUARED = 1e-140
"""Below this squares leave the range of float64."""
SMALL = 1e-15
"""Below this an fp32 norm is unreliable: squares of elements under 1e-19 underflow."""
TINY = 1e-37
"""Coefficients below this are no ordinary numbers of fp32."""
FEW = 16
"""Norms of so many tensors are read one by one: it is faster than to stack them."""


@dataclass
class Gradients:
    """The gradients of one update with their norms.

    names, params, tensors: P parameters that have a gradient.
    norms: (P,) float64, L2 norm of each. total: () float64, L2 norm of all.
    """

    names: list[str]
    params: list[torch.Tensor]
    tensors: list[torch.Tensor]
    norms: torch.Tensor
    total: torch.Tensor

    lane_dims = 0
    """Leading dimensions that count lanes: one in `gradlab.sweep.vectorized`."""

    def scale_(self, coefficient: torch.Tensor) -> None:
        """Multiply every gradient by a () coefficient; on a CPU reading it costs nothing, and 1 is skipped."""
        if not self.tensors:
            return
        if coefficient.device.type != "cpu":
            torch._foreach_mul_(self.tensors, coefficient.to(self.tensors[0].dtype))
        elif (value := coefficient.item()) != 1.0:
            for _ in range(2 if value < TINY else 1):  # in fp32 it would be 0
                torch._foreach_mul_(self.tensors, value if value >= TINY else math.sqrt(value))

    def scale_each_(self, coefficients: torch.Tensor) -> None:
        """Multiply gradient i by coefficients[i], of (P,)."""
        if coefficients.device.type != "cpu":
            for tensor, coefficient in zip(self.tensors, coefficients.unbind(), strict=True):
                tensor.mul_(coefficient)
        elif self.tensors and (coefficients < 1).any():
            torch._foreach_mul_(self.tensors, coefficients.tolist())

    def clamp_(self, bound: float) -> None:
        """Clamp every element to [-bound, bound]."""
        if self.tensors:
            torch._foreach_clamp_min_(self.tensors, -bound)
            torch._foreach_clamp_max_(self.tensors, bound)

    def measured_again(self) -> torch.Tensor:
        """(P,) float64: the norms of the gradients as they are now."""
        return self.norms_of(self.tensors)

    def norms_of(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        """(P,) float64: the norms of tensors of the parameters' shapes."""
        return tensor_norms(tensors, self.total.device)

    def total_of_type(self, order: float) -> torch.Tensor:
        """() float64, or (L,) of L lanes: the sum of magnitudes (order 1) or the largest (inf) of all gradients."""
        each = self.magnitudes(order)
        if not each.shape[-1]:
            return torch.zeros_like(self.total)
        return each.sum(-1) if order == 1 else each.amax(-1)

    def magnitudes(self, order: float) -> torch.Tensor:
        """(P,) float64: of each gradient."""
        return tensor_magnitudes(self.tensors, order, self.total.device)

    def elements(self) -> dict[str, torch.Tensor]:
        return element_statistics(self.tensors, self.norms)


def tensor_norms(tensors: list[torch.Tensor], device: torch.device | str = "cpu") -> torch.Tensor:
    """L2 norm of each tensor, as (P,) float64, right from 1e-45 to 3e38; of no tensors, an empty one on `device`.

    On CUDA the kernel accumulates in float64: one read, no synchronisation. On a CPU that is 25x slower than fp32, so
    only the norms that fp32 may get wrong are computed again: not finite, zero or tiny (squares leave fp32's range
    above 2e19 and below 1e-19).
    """
    if not tensors:
        return torch.zeros(0, dtype=torch.float64, device=device)
    if tensors[0].device.type != "cpu":
        return torch.stack(torch._foreach_norm(tensors, 2, dtype=torch.float64))
    norms = torch.stack(torch._foreach_norm(tensors)).double()
    low, high = (extreme.item() for extreme in norms.aminmax())  # NaN if there is one
    if not (low > SMALL and high < torch.inf):
        for i in (~((norms > SMALL) & (norms < torch.inf))).nonzero():
            norms[i] = norm_of_wide(tensors[i].double())
    return norms


def norm_of_wide(tensor: torch.Tensor) -> torch.Tensor:
    """() L2 norm of all of a CPU's float64 tensor, where squares may leave its range too."""
    plain: torch.Tensor = torch.linalg.vector_norm(tensor)
    unit = tensor.abs().max() if tensor.numel() else plain
    if SQUARED < unit < 1 / SQUARED or not 0 < unit < torch.inf:
        return plain
    scaled: torch.Tensor = unit * torch.linalg.vector_norm(tensor / unit)
    return scaled


def tensor_magnitudes(tensors: list[torch.Tensor], order: float, device: torch.device | str) -> torch.Tensor:
    """Sum of magnitudes (order 1) or the largest (inf) of each tensor, as (P,) float64."""
    if not tensors:
        return torch.zeros(0, dtype=torch.float64, device=device)
    if order == 1:
        return torch.stack([torch.linalg.vector_norm(t, 1, dtype=torch.float64) for t in tensors])
    return torch.stack([largest(t) if t.numel() else t.new_zeros(()) for t in tensors]).double()


def total_of(tensors: list[torch.Tensor]) -> float | None:
    """L2 norm of all of a CPU's fp32 or fp64 tensors, as a number; None where `tensor_norms` has to look closer.

    One operation on single numbers takes as long as adding up fifty of them here, and reading a few as stacking them.
    """
    each = torch._foreach_norm(tensors) if tensors else ()
    norms = [norm.item() for norm in each] if len(each) <= FEW else torch.stack(each).tolist()
    total = math.hypot(*norms)
    return total if total < math.inf and min(norms, default=1.0) > SMALL else None


def total_norm(norms: torch.Tensor) -> torch.Tensor:
    """L2 norm of norms: (..., P) -> (...), float64. Leading dimensions are lanes."""
    total: torch.Tensor = torch.linalg.vector_norm(norms, dim=-1, dtype=torch.float64)
    if total.dim() or total.device.type != "cpu" or SQUARED < total.item() < torch.inf:
        return total
    return norm_of_wide(norms)


def measure(names: list[str], params: list[torch.Tensor], device: torch.device | str = "cpu") -> Gradients:
    """Read `p.grad` of every parameter once; parameters without a gradient are left out."""
    tensors = [p.grad for p in params]
    if any(grad is None for grad in tensors):
        names = [name for name, grad in zip(names, tensors, strict=True) if grad is not None]
        params = [p for p in params if p.grad is not None]
    present = [grad for grad in tensors if grad is not None]
    norms = tensor_norms(present, device)
    return Gradients(names, params, present, norms, total_norm(norms))


def largest(tensor: torch.Tensor) -> torch.Tensor:
    """() largest magnitude of a tensor that is not empty. A CPU takes 25 times as long over the infinity norm."""
    if tensor.device.type != "cpu":
        magnitude: torch.Tensor = torch.linalg.vector_norm(tensor, torch.inf)
        return magnitude
    return torch.maximum(tensor.amax(), -tensor.amin())


def element_statistics(tensors: list[torch.Tensor], norms: torch.Tensor) -> dict[str, torch.Tensor]:
    """Mean, standard deviation, largest magnitude and number of non-finite elements of each tensor, (P,) float64 each.

    norms: (P,) float64, their L2 norms, from which the spread follows without another pass.
    """
    sums, sizes, highest, bad = raw_elements(tensors, norms)
    return elements_of(sums, sizes, highest, bad, norms)


def raw_elements(tensors: list[torch.Tensor], norms: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Sum, size, largest magnitude and number of non-finite elements of each tensor, (P,) float64 each."""
    if not tensors:
        return norms, norms, norms, norms
    sizes = torch.tensor([t.numel() for t in tensors], dtype=torch.float64).to(norms.device, non_blocking=True)
    sums = torch.stack([t.sum() for t in tensors]).double()
    present = [t if t.numel() else t.new_zeros(1) for t in tensors]
    if norms.device.type != "cpu":
        highest = torch.stack(torch._foreach_norm(present, torch.inf))
        bad = torch.stack([(t - t != 0).sum() for t in tensors]).double()
    else:
        highest = torch.stack([largest(t) for t in present])
        # A finite norm means finite elements: only the others are read again.
        bad = torch.zeros_like(norms)
        for i in (~torch.isfinite(norms)).nonzero():
            bad[i] = (~torch.isfinite(tensors[i])).sum().double()
    return sums, sizes, highest.double(), bad


def elements_of(
    sums: torch.Tensor, sizes: torch.Tensor, highest: torch.Tensor, bad: torch.Tensor, norms: torch.Tensor
) -> dict[str, torch.Tensor]:
    """The statistics that follow from `raw_elements` and the norms."""
    sizes = sizes.clamp(min=1)
    mean = sums / sizes
    std = (norms.square() / sizes - mean.square()).clamp(min=0).sqrt()
    return {"grad/mean": mean, "grad/std": std, "grad/max": highest, "grad/nonfinite": bad}
