"""A model that is measured, and left as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def untouched(model: torch.nn.Module) -> Iterator[None]:
    """Context after which its buffers are what they were, and it has no gradients.

    The running mean of a pass that overflows would break the next batch.
    """
    buffers = [b.clone() for b in model.buffers()]
    try:
        yield
    finally:
        for b, before in zip(model.buffers(), buffers, strict=True):
            b.data.copy_(before)
        model.zero_grad(set_to_none=True)
