"""Functions for use under `torch.func.vmap` that get their tensors unbatched, with a dimension of lanes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")

is_batched: Callable[[Tensor], bool] = torch._C._functorch.is_batchedtensor


def vmap_rule(rule: Callable[P, R]) -> Callable[P, R | None]:
    """A function for use under vmap, called with positional arguments: `rule` gets its tensors with the lanes first.

    It returns None where no tensor differs between lanes.
    """

    class Rule(torch.autograd.Function):
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

            out: Any = rule(*(first(x, dim) for x, dim in zip(args, in_dims, strict=True)))  # type: ignore[call-arg]
            return out, (0,) * len(out) if isinstance(out, tuple) else 0

    def call(*args: P.args, **kwargs: P.kwargs) -> R | None:
        if not any(isinstance(x, Tensor) and is_batched(x) for x in args):
            return None
        out: R = Rule.apply(*args)
        return out

    return call
