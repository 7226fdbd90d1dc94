"""Gradients of many lanes at once.

L lanes, P parameters, N elements of all parameters
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradlab.update.gradients import SMALL, Gradients


def lane_norms(views: Sequence[Tensor]) -> Tensor:
    """(L, P) float64: the L2 norm of each lane's part of each tensor, right from 1e-45 to 3e38 (see `tensor_norms`)."""
    rows = [view.flatten(1) if view.dim() > 1 else view.unsqueeze(1) for view in views]
    if rows[0].device.type != "cpu":
        return torch.stack([torch.linalg.vector_norm(r, dim=1, dtype=torch.float64) for r in rows], 1)
    norms = torch.stack([torch.linalg.vector_norm(r, dim=1) for r in rows], 1).double()
    for lane, i in (~((norms > SMALL) & (norms < torch.inf))).nonzero().tolist():
        norms[lane, i] = torch.linalg.vector_norm(rows[i][lane], dtype=torch.float64)
    return norms


@dataclass
class LaneGradients(Gradients):
    """Gradients of L lanes: tensors (L, *shape) are parts of `matrix`, (L, N); norms (L, P), total (L,)."""

    matrix: Tensor
    lane_dims = 1

    def scale_(self, coefficient: Tensor) -> None:
        if self.matrix.device.type != "cpu" or (coefficient != 1).any():
            self.matrix.mul_(coefficient.to(self.matrix.dtype).unsqueeze(1))

    def scale_each_(self, coefficients: Tensor) -> None:
        sizes = torch.tensor([t[0].numel() for t in self.tensors], device=coefficients.device)
        self.matrix.mul_(coefficients.to(self.matrix.dtype).repeat_interleave(sizes, 1))

    def clamp_(self, bound: float | Tensor) -> None:
        edge = torch.as_tensor(bound, dtype=self.matrix.dtype, device=self.matrix.device).reshape(-1, 1)
        torch.clamp(self.matrix, -edge, edge, out=self.matrix)

    def magnitudes(self, order: float) -> Tensor:
        """(L, 1) float64: of each lane's whole gradient."""
        dtype = torch.float64 if order == 1 else None  # the largest is exact, and float64 takes long
        found: Tensor = torch.linalg.vector_norm(self.matrix, order, dim=1, keepdim=True, dtype=dtype)
        return found.double()

    def measured_again(self) -> Tensor:
        return lane_norms(self.tensors)
