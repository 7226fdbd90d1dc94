"""Functions for use under `torch.func.vmap` that get their tensors whole, with all lanes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

is_batched: Callable[[Tensor], bool] = torch._C._functorch.is_batchedtensor


def vmap_rule(rule: Callable[..., Any]) -> Callable[..., Any]:
    """A function for use under vmap: `rule` gets its tensors with the lanes as their first dimension.

    It gives None where no tensor differs between lanes.
    """

    class Whole(torch.autograd.Function):
        @staticmethod
        def forward(*args: Any) -> Any:
            raise RuntimeError("no tensor of this call differs between lanes")

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
            lanes = info.batch_size

            def first(x: Any, dim: int | None) -> Any:
                if not isinstance(x, Tensor):
                    return x
                return x.expand(lanes, *x.shape) if dim is None else x.movedim(dim, 0)

            out = rule(*(first(x, dim) for x, dim in zip(args, in_dims, strict=True)))
            return out, (0,) * len(out) if isinstance(out, tuple) else 0

    def call(*args: Any) -> Any:
        return Whole.apply(*args) if any(isinstance(x, Tensor) and is_batched(x) for x in args) else None

    return call
