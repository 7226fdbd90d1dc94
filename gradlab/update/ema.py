"""The exponential moving average of the weights, which is evaluated in their place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch


@dataclass
class EMA:
    """One tensor for each parameter: average = d average + (1 - d) weights after every applied update.

    d is `decay`, and less at the beginning, min(decay, (1 + n) / (10 + n)) after n applied updates, as in TensorFlow's
    ExponentialMovingAverage: the initial weights are forgotten soon, whatever the length of the run.
    """

    decay: float
    tensors: list[torch.Tensor]
    """At least fp32: a narrow type would lose what an update adds."""

    @classmethod
    def of(cls, params: Sequence[torch.Tensor], decay: float) -> EMA:
        return cls(decay, [p.detach().to(torch.promote_types(p.dtype, torch.float32), copy=True) for p in params])

    def follow_(self, params: Sequence[torch.Tensor], applied: torch.Tensor, skipped: torch.Tensor) -> None:
        """After an update, the applied-th unless it was skipped; waits for no device."""
        now = [p.detach().to(average.dtype) for p, average in zip(params, self.tensors, strict=True)]
        part = (9 / (10.0 + applied.double())).clamp(min=1 - self.decay) * (skipped == 0)
        if part.device.type == "cpu":
            if (value := part.item()) > 0:
                torch._foreach_lerp_(self.tensors, now, value)
            return
        of = {dtype: part.to(dtype) for dtype in {average.dtype for average in self.tensors}}
        torch._foreach_lerp_(self.tensors, now, [of[average.dtype] for average in self.tensors])


@contextmanager
def evaluated(params: Sequence[torch.Tensor], optimizer: torch.optim.Optimizer, ema: EMA | None) -> Iterator[bool]:
    """Parameters with the values that are evaluated; whether they are others than those that are trained.

    They are the average, or what an optimizer with `eval()` makes of them, as schedule-free ones do.
    """
    to_eval = getattr(optimizer, "eval", None)
    if ema is None and not callable(to_eval):
        yield False
        return
    params = [p.detach() for p in params]
    trained = [p.clone() for p in params]
    if callable(to_eval):
        to_eval()
    if ema is not None:
        torch._foreach_copy_(params, ema.tensors)
    try:
        yield True
    finally:
        if callable(to_eval):
            optimizer.train()  # type: ignore[attr-defined]
        torch._foreach_copy_(params, trained)  # the way back rounds
