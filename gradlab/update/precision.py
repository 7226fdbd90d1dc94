"""Precision: what the forward pass rounds to, and the loss scale that keeps gradients within fp16's range."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from gradlab.base.option import Invalid, at_least, one_of, option, require

SCALE_FLOOR = 2.0**-120
"""The scale stays above this: at about 2e-39 its reciprocal overflows in fp32, and unscaling makes infinities."""


class ScaleTooSmall(RuntimeError):
    """The loss scale fell under `precision.min_scale`."""

    def __init__(self, scale: float) -> None:
        super().__init__(f"grad_scale is too small, exiting: {scale}")


@dataclass
class PrecisionOption:
    """Base of the options: full precision, a loss scale of 1 that never moves."""

    half: ClassVar[bool] = False
    """Whether the forward pass rounds to fp16."""

    nonfinite: str = "stop"
    """What a non-finite gradient does: `stop` the run, or `skip` the update. It is never applied."""

    def __post_init__(self) -> None:
        one_of("nonfinite", self.nonfinite, ("stop", "skip"))

    def build(self, device: torch.device) -> Precision:
        return Precision(device)

    @property
    def scaled(self) -> bool:
        """Whether there is a loss scale that moves."""
        return False

    def check_scale(self, scale: float, attempts: int | None = None) -> None:
        """Raise `ScaleTooSmall` for a loss scale below its floor.

        attempts: updates tried so far, of which not all need to be followed by a check; None at the end of a run.
        """

    @property
    def stops(self) -> bool:
        return self.nonfinite == "stop"


@option("precision", "fp32")
@dataclass
class FP32(PrecisionOption):
    """Single precision throughout."""


@option("precision", "bf16")
@dataclass
class BF16(PrecisionOption):
    """autocast to bfloat16: fp32's range, 8 bits of precision, no loss scale."""

    def build(self, device: torch.device) -> Precision:
        return Precision(device, torch.bfloat16)


@option("precision", "fp16")
@dataclass
class FP16(PrecisionOption):
    """autocast to float16 with a dynamic loss scale (Micikevicius et al. 2018), by `torch.amp.GradScaler`'s rule.

    An overflow skips its update and halves the scale; `growth_interval` good updates in a row double it.
    """

    half = True
    nonfinite: str = "skip"
    enabled: bool = True
    """false: no loss scale (it stays 1 and never moves), which lets small gradients flush to zero."""
    init_scale: float = 65536.0
    """The first scale."""
    growth_factor: float = 2.0
    """Factor of a growth."""
    backoff_factor: float = 0.5
    """Factor of a back-off."""
    growth_interval: int = 2000
    """Good updates in a row before a growth."""
    min_scale: float = 1e-5
    """Below this the run ends with `grad_scale is too small, exiting: <scale>`."""
    check_every: int = 1
    """Every how many updates the scale is compared with min_scale; public recipes do so every 50 to 100."""
    cpu_gemm: str = "fast"
    """On a CPU: `fast` computes products of fp16 operands in fp32 and rounds them, as tensor cores do; or `native`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.init_scale <= 2.0**127, "init_scale", self.init_scale, "> 0 and <= 2^127, which fp32 holds")
        at_least(self, growth_factor=1, growth_interval=1, check_every=1)
        require(0 < self.backoff_factor <= 1, "backoff_factor", self.backoff_factor, "in (0, 1]")
        require(self.min_scale >= SCALE_FLOOR, "min_scale", self.min_scale, f">= {SCALE_FLOOR:.3g}")
        bound = f">= min_scale, which is {self.min_scale:g}"
        require(not self.enabled or self.init_scale >= self.min_scale, "init_scale", self.init_scale, bound)
        one_of("cpu_gemm", self.cpu_gemm, ("fast", "native"))

    def build(self, device: torch.device) -> Precision:
        return Precision(device, torch.float16, LossScale(self, device), self.cpu_gemm)

    @property
    def scaled(self) -> bool:
        return self.enabled

    def check_scale(self, scale: float, attempts: int | None = None) -> None:
        if (attempts is None or attempts % self.check_every == 0) and scale < self.min_scale:
            raise ScaleTooSmall(scale)


def updated_scale(
    scale: torch.Tensor,
    growth_tracker: torch.Tensor,
    found_inf: torch.Tensor,
    growth_factor: float | torch.Tensor,
    backoff_factor: float | torch.Tensor,
    growth_interval: int | torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """GradScaler's rule, elementwise over lanes: the next scale and count of good updates in a row.

    scale: (...) float32. growth_tracker: (...) int32. found_inf: (...) bool. A growth that would overflow is not taken,
    and the scale stays at or above SCALE_FLOOR.
    """
    good = growth_tracker + 1
    grown = torch.where(good == growth_interval, (scale * growth_factor).to(scale.dtype), scale)
    grown = torch.where(torch.isfinite(grown), grown, scale)
    shrunk = (scale * backoff_factor).to(scale.dtype).clamp(min=SCALE_FLOOR)
    restart = found_inf | (good == growth_interval)
    return torch.where(found_inf, shrunk, grown), torch.where(restart, torch.zeros_like(good), good)


class LossScale:
    """The state of a dynamic loss scale, on the device.

    Not `torch.amp.GradScaler`, whose found_inf is computed before unscaling: with a scale below 1 finite gradients can
    overflow in the unscaling and reach the weights. Here the norm of the unscaled gradient decides.
    """

    def __init__(self, option: FP16, device: torch.device) -> None:
        self.option = option
        first = option.init_scale if option.enabled else 1.0
        self.scale = torch.tensor(first, dtype=torch.float32, device=device)
        self.growth_tracker = torch.zeros((), dtype=torch.int32, device=device)

    def update(self, found_inf: torch.Tensor, empty: torch.Tensor | None = None) -> None:
        """empty: bool, whether there was no gradient; then nothing moves."""
        o = self.option
        if not o.enabled:
            return
        scale, good = updated_scale(
            self.scale, self.growth_tracker, found_inf.bool(), o.growth_factor, o.backoff_factor, o.growth_interval
        )
        if empty is not None:
            scale, good = torch.where(empty, self.scale, scale), torch.where(empty, self.growth_tracker, good)
        self.scale, self.growth_tracker = scale, good


class Precision:
    """Autocast and loss scaling, one path for all precisions. Without a loss scale, the factor is 1."""

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype | None = None,
        loss_scale: LossScale | None = None,
        cpu_gemm: str | None = None,
    ) -> None:
        self.device, self.dtype, self.loss_scale = device, dtype, loss_scale
        self.cpu_gemm = cpu_gemm if device.type == "cpu" else None
        self.one = torch.ones((), dtype=torch.float32, device=device)

    @property
    def scale(self) -> torch.Tensor:
        """() float32, the loss scale; 1 where there is none."""
        return self.loss_scale.scale if self.loss_scale else self.one

    @contextmanager
    def arithmetic(self) -> Iterator[None]:
        """Context in which products round as in this precision: needed around forward and backward pass."""
        if self.dtype is None or self.device.type != "cpu":
            yield
            return
        from gradlab.update import fp16_cpu

        with fp16_cpu.context(self.cpu_gemm) if self.cpu_gemm else fp16_cpu.without_onednn(self.dtype):
            yield

    def autocast(self) -> Any:
        """Context of a forward pass."""
        if self.dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)

    def unscale_(self, tensors: list[torch.Tensor]) -> None:
        """Divide the gradients by the loss scale, in place."""
        if self.loss_scale is not None and tensors:
            torch._foreach_mul_(tensors, self.loss_scale.scale.double().reciprocal().float())

    def check_held(self, name: str, p: torch.Tensor) -> None:
        """Raise `Invalid` for a parameter whose unscaled gradient would vanish."""
        if self.loss_scale is not None and p.dtype == torch.float16:
            why = f"{name} is held in fp16, in which unscaled gradients vanish: keep it in fp32; autocast rounds"
            raise Invalid("precision", "fp16", why)

    def update(self, found_inf: torch.Tensor, empty: torch.Tensor | None = None) -> None:
        """Back the scale off, or let it grow; where a window is empty, bool, leave it."""
        if self.loss_scale is not None:
            self.loss_scale.update(found_inf, empty)

    def state_dict(self) -> dict[str, torch.Tensor]:
        s = self.loss_scale
        return {} if s is None else {"scale": s.scale.clone(), "growth_tracker": s.growth_tracker.clone()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        if self.loss_scale is not None:
            if not state:
                why = "the checkpoint holds no loss scale: it was not written by an fp16 run"
                raise Invalid("precision", "fp16", why)
            self.loss_scale.scale = state["scale"].to(self.device)
            self.loss_scale.growth_tracker = state["growth_tracker"].to(self.device)
