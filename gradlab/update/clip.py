"""Gradient clipping. The arithmetic is pure (norms in, coefficients out, thresholds may be tensors); acting is `clip_`.

A strategy is a dataclass with `clip_`. A strategy that depends on earlier norms keeps its state in a dictionary of
tensors, which the caller commits only if the update was applied: a skipped update does not change it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from math import inf
from typing import ClassVar, NamedTuple

import torch

from gradlab.base.option import above_zero, at_least, option, require
from gradlab.update.gradients import Gradients, total_norm
from gradlab.update.layers import layers_of

State = dict[str, "torch.Tensor"]


class Clipped(NamedTuple):
    """What a strategy did: ||clipped|| / ||gradient||, whether it acted, and its state should the update be applied."""

    coefficient: torch.Tensor  # () float64
    acted: torch.Tensor  # () bool
    state: State


@dataclass
class Clip:
    """Base of the strategies: `init` returns the first update's state, `clip_` changes the gradients in place."""

    threshold: ClassVar[str | None] = None
    """The field below which gradients are not clipped, in strategies without state; see `reach`."""
    shardable: ClassVar[bool] = False
    """Whether it is right where a rank holds a part of every gradient (FSDP): it reads norms only, or changes elements
    one by one."""
    whole: ClassVar[bool] = False
    """Whether it scales the whole gradient by one number."""

    def reach(self, gradients: Gradients) -> torch.Tensor:
        """The smallest threshold that does not clip these gradients: () or, of many lanes, (L,)."""
        raise NotImplementedError

    def init(self, device: torch.device) -> State:
        return {}

    def clip_(self, gradients: Gradients, state: State) -> Clipped:
        raise NotImplementedError


def norm_coefficient(total: torch.Tensor, max_norm: float | torch.Tensor) -> torch.Tensor:
    """min(1, max_norm / total): total (...) -> (...). 1 for a zero norm, NaN for a NaN norm.

    `torch.nn.utils.clip_grad_norm_` divides by total + 1e-6, which under-clips norms near 1e-6; this does not.
    """
    coefficient = max_norm / total
    return torch.where(total == 0, torch.ones_like(coefficient), coefficient.clamp(max=1.0))


def per_lane(value: float | torch.Tensor, of: torch.Tensor) -> float | torch.Tensor:
    """One value per lane, (...), shaped for tensors with further dimensions; a plain number is shared by all lanes."""
    return value.reshape(*value.shape, *[1] * (of.dim() - value.dim())) if isinstance(value, torch.Tensor) else value


def scaled(gradients: Gradients, coefficient: torch.Tensor, state: State) -> Clipped:
    """Scale all gradients by one coefficient, which keeps their direction."""
    gradients.scale_(coefficient)
    return Clipped(coefficient, coefficient < 1, state)


@option("clip", "none")
@dataclass
class NoClip(Clip):
    """No clipping; the norm is still measured and reported."""

    shardable = True

    def clip_(self, gradients: Gradients, state: State) -> Clipped:
        one = torch.ones_like(gradients.total)
        return Clipped(one, one < 1, state)


@option("clip", "norm")
@dataclass
class NormClip(Clip):
    """Scale the whole gradient to at most max_norm (Pascanu, Mikolov, Bengio 2013, algorithm 1)."""

    whole = True
    shardable = True
    threshold = "max_norm"
    max_norm: float = 1.0
    """Largest norm of the whole gradient."""
    norm_type: float = 2.0
    """Which norm: 2, 1 (the sum of magnitudes) or inf (the largest). The norm that is logged is always the L2 norm."""

    def __post_init__(self) -> None:
        above_zero(self, "max_norm")
        require(self.norm_type in (1, 2, inf), "norm_type", self.norm_type, "1, 2 or inf")

    def reach(self, gradients: Gradients) -> torch.Tensor:
        return gradients.total if self.norm_type == 2 else gradients.total_of_type(self.norm_type)

    def clip_(self, gradients: Gradients, state: State) -> Clipped:
        return scaled(gradients, norm_coefficient(self.reach(gradients), self.max_norm), state)


@option("clip", "value")
@dataclass
class ValueClip(Clip):
    """Clamp every element to [-max_value, max_value]; this changes the gradient's direction."""

    shardable = True
    max_value: float = 0.5
    """Largest magnitude of an element."""

    def __post_init__(self) -> None:
        above_zero(self, "max_value")

    def clip_(self, gradients: Gradients, state: State) -> Clipped:
        gradients.clamp_(self.max_value)
        # The clamped gradient differs: its norm has to be measured again.
        norms = gradients.measured_again()  # (P,)
        acted = (norms < gradients.norms).any(-1)
        ratio = (total_norm(norms) / gradients.total).nan_to_num(nan=1.0)
        return Clipped(torch.where(acted, ratio, torch.ones_like(ratio)), acted, state)


@functools.cache
def layer_index(names: tuple[str, ...], device: torch.device) -> tuple[torch.Tensor, int]:
    """Each parameter's layer as (P,) on the device, and the number of layers; copied there once."""
    layers, index = layers_of(names)
    return torch.tensor(index, dtype=torch.long, device=device), len(layers)


def layer_norms(norms: torch.Tensor, layer: torch.Tensor, count: int) -> torch.Tensor:
    """L2 norm of each layer: norms (..., P), layer (P,) in [0, L) -> (..., L)."""
    squares = torch.zeros(*norms.shape[:-1], count, dtype=norms.dtype, device=norms.device)
    return squares.index_add(-1, layer, norms.square()).sqrt()


@option("clip", "per_layer")
@dataclass
class PerLayerClip(Clip):
    """Scale each layer's gradient to at most max_norm; a layer is the module that owns the parameters.

    Every parameter belongs to exactly one layer: none is clipped twice or not at all.
    """

    shardable = True
    threshold = "max_norm"
    max_norm: float = 1.0
    """Largest L2 norm of one layer's gradient."""

    def __post_init__(self) -> None:
        above_zero(self, "max_norm")

    def reach(self, gradients: Gradients) -> torch.Tensor:
        layer, count = layer_index(tuple(gradients.names), gradients.norms.device)
        return layer_norms(gradients.norms, layer, count).amax(-1)

    def clip_(self, gradients: Gradients, state: State) -> Clipped:
        layer, count = layer_index(tuple(gradients.names), gradients.norms.device)
        norms = layer_norms(gradients.norms, layer, count)
        coefficient = norm_coefficient(norms, per_lane(self.max_norm, norms))
        return scaled_each(gradients, coefficient[..., layer], state)


def scaled_each(gradients: Gradients, coefficients: torch.Tensor, state: State) -> Clipped:
    """Scale gradient i by coefficients[i]."""
    acted = (coefficients < 1).any(-1)
    gradients.scale_each_(coefficients)
    ratio = (total_norm(gradients.norms * coefficients) / gradients.total).nan_to_num(nan=1.0)
    return Clipped(torch.where(acted, ratio, torch.ones_like(ratio)), acted, state)


def unit_norms(tensor: torch.Tensor, lane_dims: int = 0) -> torch.Tensor:
    """Norm of each output unit (a matrix's row, a filter; the whole of a vector or scalar). Keeps dimensions.

    lane_dims: leading dimensions that count lanes.
    """
    if tensor.dim() == lane_dims:
        return tensor.double().abs()
    dims = tuple(range(min(lane_dims + 1, tensor.dim() - 1), tensor.dim()))
    norms: torch.Tensor = torch.linalg.vector_norm(tensor, dim=dims, keepdim=True, dtype=torch.float64)
    return norms


def agc_coefficients(
    grad_norms: torch.Tensor, param_norms: torch.Tensor, factor: float | torch.Tensor, eps: float | torch.Tensor
) -> torch.Tensor:
    """min(1, factor * max(||W||, eps) / ||G||), unit by unit (Brock et al. 2021, equation 3)."""
    floor = torch.as_tensor(eps, dtype=param_norms.dtype, device=param_norms.device)
    return (factor * param_norms.maximum(floor) / grad_norms).clamp(max=1.0)


@option("clip", "agc")
@dataclass
class AdaptiveClip(Clip):
    """Adaptive gradient clipping: each unit's gradient at most `factor` of its weights' norm (Brock et al. 2021)."""

    factor: float = 0.01
    """Largest ratio of gradient norm to weight norm."""
    eps: float = 1e-3
    """Floor of the weight norm, without which weights that start at zero could never move."""

    def __post_init__(self) -> None:
        above_zero(self, "factor", "eps")

    def clip_(self, gradients: Gradients, state: State) -> Clipped:
        pairs = [(p, g) for p, g in zip(gradients.params, gradients.tensors, strict=True) if g.numel()]
        acted = torch.zeros_like(gradients.total, dtype=torch.bool)
        with torch.no_grad():
            for param, grad in pairs:
                norms = unit_norms(grad, gradients.lane_dims)
                factor, eps = per_lane(self.factor, norms), per_lane(self.eps, norms)
                coefficient = agc_coefficients(norms, unit_norms(param, gradients.lane_dims), factor, eps)
                acted |= (coefficient < 1).reshape(*acted.shape, -1).any(-1)
                grad.mul_(coefficient.to(grad.dtype))
        ratio = total_norm(gradients.measured_again()) / gradients.total
        return Clipped(torch.where(acted, ratio, torch.ones_like(ratio)), acted, state)


@option("clip", "autoclip")
@dataclass
class AutoClip(Clip):
    """Clip at a percentile of the norms seen so far, this one included (Seetharaman et al. 2020, AutoClip)."""

    whole = True
    shardable = True
    percentile: float = 10.0
    """Percentile of the history that is the largest norm; the paper's value is 10."""
    history: int = 1000
    """How many norms are remembered; the paper remembers all."""

    def __post_init__(self) -> None:
        require(0 < self.percentile <= 100, "percentile", self.percentile, "in (0, 100]")
        at_least(self, history=1)

    def init(self, device: torch.device) -> State:
        norms = torch.full((self.history,), float("nan"), dtype=torch.float64, device=device)
        return {"norms": norms, "count": torch.zeros((), dtype=torch.long, device=device)}

    def clip_(self, gradients: Gradients, state: State) -> Clipped:
        slot = (state["count"] % self.history).unsqueeze(-1)
        norms = state["norms"].scatter(-1, slot, gradients.total.unsqueeze(-1))
        max_norm = torch.nanquantile(norms, self.percentile / 100, dim=-1)
        if isinstance(self.percentile, torch.Tensor):  # every percentile of every lane: keep each lane's own
            max_norm = max_norm.diagonal()
        coefficient = norm_coefficient(gradients.total, max_norm)
        return scaled(gradients, coefficient, {"norms": norms, "count": state["count"] + 1})


def zclip_norm(total: torch.Tensor, mean: torch.Tensor, std: torch.Tensor, z_max: float | torch.Tensor) -> torch.Tensor:
    """The norm that replaces an outlier: mean + std * z_max^2 / z where z = (total - mean) / std exceeds z_max."""
    z = (total - mean) / std
    return torch.where(z > z_max, mean + std * z_max**2 / z, total)


@option("clip", "zclip")
@dataclass
class ZClip(Clip):
    """Clip norms that are outliers of their own running statistics (Kumar et al. 2025, ZClip, algorithm 1)."""

    whole = True
    shardable = True
    z_max: float = 2.5
    """z-score beyond which a norm is an outlier."""
    decay: float = 0.97
    """Decay of the running mean and variance of the norm."""
    warmup: int = 25
    """Updates that only collect statistics."""

    def __post_init__(self) -> None:
        above_zero(self, "z_max")
        require(0 < self.decay < 1, "decay", self.decay, "in (0, 1)")
        require(self.warmup >= 2, "warmup", self.warmup, ">= 2, for a variance to exist")

    def init(self, device: torch.device) -> State:
        return {name: torch.zeros((), dtype=torch.float64, device=device) for name in ("mean", "variance", "count")}

    def clip_(self, gradients: Gradients, state: State) -> Clipped:
        mean, variance, count = state["mean"], state["variance"], state["count"]
        warm = count < self.warmup
        target = torch.where(warm, gradients.total, zclip_norm(gradients.total, mean, variance.sqrt(), self.z_max))
        # While warming up: Welford's running mean and (population) variance; then exponential ones.
        rate = torch.where(warm, 1 / (count + 1), 1 - self.decay)
        delta = target - mean
        moved = mean + rate * delta
        spread = torch.where(warm, delta * (target - moved), (target - moved).square())
        new = {"mean": moved, "variance": variance + rate * (spread - variance), "count": count + 1}
        coefficient = torch.where(target < gradients.total, target / gradients.total, torch.ones_like(target))
        return scaled(gradients, coefficient, new)
