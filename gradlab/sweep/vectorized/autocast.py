"""Autocast for lanes: vmap decomposes some functions before autocast sees them, so their arguments are cast here."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

LOWERED: set[Any] = {
    F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d,
    F.scaled_dot_product_attention, F.prelu, torch.prelu, torch.linalg.vecdot,
    torch.baddbmm, torch.addmm, torch.addbmm, Tensor.baddbmm, Tensor.addmm, Tensor.addbmm,
}  # fmt: skip
"""Functions that autocast computes in half precision, and that vmap would compute in fp32."""
WIDENED: set[Any] = {
    F.cross_entropy, F.nll_loss, F.l1_loss, F.binary_cross_entropy_with_logits, F.poisson_nll_loss,
    F.hinge_embedding_loss, F.cosine_embedding_loss,
}  # fmt: skip
"""Functions that autocast computes in fp32, and that vmap would compute in half precision."""
WIDENED_ON_CUDA: set[Any] = {
    F.layer_norm, F.softmax, torch.softmax, Tensor.softmax, F.log_softmax, torch.log_softmax, Tensor.log_softmax,
}  # fmt: skip
"""And those that it computes in fp32 on CUDA devices only."""


def lowered(*tensors: Tensor | None) -> list[Tensor | None]:
    """The tensors as autocast, where it is on, hands them to a product."""
    kind = next(t for t in tensors if t is not None).device.type
    if not torch.is_autocast_enabled(kind):
        return list(tensors)
    dtype = torch.get_autocast_dtype(kind)
    return [t if t is None else t.to(dtype) for t in tensors]


def as_autocast(func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Arguments as autocast, where it is on, would pass them to this function: vmap decomposes some before it can."""
    kind = next((x.device.type for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), "cpu")
    if not torch.is_autocast_enabled(kind) or (func in WIDENED_ON_CUDA and kind != "cuda"):
        return args, kwargs
    dtype = torch.get_autocast_dtype(kind) if func in LOWERED else torch.float32

    def cast(x: Any) -> Any:
        return x.to(dtype) if isinstance(x, Tensor) and x.dtype in (torch.float32, torch.float16, torch.bfloat16) else x

    return tuple(map(cast, args)), {k: cast(x) for k, x in kwargs.items()}
