"""One check of a model's gradients in your own loop, between `backward` and the optimizer's step.

Everything is measured in one batched pass and fetched in one transfer; only gradients whose norm is not finite, or tiny
in float64, are read again.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from gradlab.base.visible import several
from gradlab.diagnosis.replay.ranges import dense
from gradlab.update.gradients import tensor_norms
from gradlab.update.layers import late_to_early_ratio, norms_by_layer

SHOWN = 5
"""Gradients listed at either end."""


def check_gradients(model: torch.nn.Module, *, scale: Any = None, quiet: bool = False) -> float:
    """L2 norm of the whole gradient; prints it, with the largest and the smallest gradients.

    scale: what the loss was multiplied with, a number, a tensor or a GradScaler, unless it was unscaled already.
    """
    norms = gradient_norms(model, scale)[0]
    total = total_of(norms)
    if not quiet:
        print(*magnitudes(norms, total), sep="\n")
    return total


def diagnose_gradients(
    model: torch.nn.Module,
    threshold_low: float = 1e-8,
    threshold_high: float = 100,
    *,
    scale: Any = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """What is wrong with a model's gradients, as a dictionary; printed unless `quiet`.

    `total_norm`; `param_norms` (name to norm); `has_nan`, `has_inf`, and which have them: `nan`, `inf`; `vanishing` and
    `exploding`: (name, norm) below threshold_low and above threshold_high; `zero`: names whose gradient is all zeros;
    `no_gradient`: names of trained parameters without one; `late_early_ratio`: mean norm of the last tenth of the
    layers over that of the first tenth, in the order of definition, None where there are fewer than two layers or a
    norm is not finite.
    scale: what the loss was multiplied with, a number, a tensor or a GradScaler, unless it was unscaled already.
    """
    norms, nan, inf = gradient_norms(model, scale)
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    found = {
        "total_norm": total_of(norms),
        "param_norms": norms,
        "has_nan": bool(nan),
        "has_inf": bool(inf),
        "vanishing": [(name, norm) for name, norm in norms.items() if norm < threshold_low],
        "exploding": [(name, norm) for name, norm in norms.items() if norm > threshold_high],
        "nan": nan,
        "inf": inf,
        "zero": [name for name, norm in norms.items() if norm == 0],
        "no_gradient": [name for name in trained if name not in norms],
        "late_early_ratio": late_early_ratio(norms),
    }
    if not quiet:
        print(*findings(found, threshold_low, threshold_high), sep="\n")
    return found


def gradient_norms(model: torch.nn.Module, scale: Any = None) -> tuple[dict[str, float], list[str], list[str]]:
    """Norm of each parameter's true gradient; names of gradients that hold NaN; names of those that hold infinities."""
    named = [(name, dense(p.grad)) for name, p in model.named_parameters() if p.grad is not None]
    if not named:
        return {}, [], []
    norms = dict(zip((name for name, _ in named), fetched([g for _, g in named], scale), strict=True))
    doubtful = {n: g for n, g in named if g.numel() and (not math.isfinite(norms[n]) or underflowed(norms[n], g))}
    nan = [name for name, grad in doubtful.items() if bool(grad.isnan().any())]
    inf = [name for name, grad in doubtful.items() if bool(grad.isinf().any())]
    for name in doubtful.keys() - {*nan, *inf}:  # finite float64 numbers whose squares are not
        largest = doubtful[name].abs().max()
        if largest > 0:
            true = largest * torch.linalg.vector_norm(doubtful[name] / largest)
            norms[name] = true.item() / float(scale_of(scale))
    return norms, nan, inf


def underflowed(norm: float, grad: torch.Tensor) -> bool:
    """Whether squares of float64 numbers may have underflowed."""
    return norm < 1e-150 and grad.dtype == torch.float64


def fetched(grads: list[torch.Tensor], scale: Any) -> list[float]:
    """Norms of gradients over the loss scale: a batched operation for each device and type, then one transfer."""
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for i, grad in enumerate(grads):
        groups.setdefault((grad.device, grad.dtype), []).append(i)
    home = grads[0].device
    parts = []
    for (device, dtype), members in groups.items():
        # a CPU adds squares up in the type that it is given; half precision holds none beyond 65504
        some = [grads[i].float() if dtype.itemsize < 4 and device.type == "cpu" else grads[i] for i in members]
        parts.append(measured(some, device).to(home))
    norms = torch.cat(parts)
    if isinstance(known := scale_of(scale), torch.Tensor):
        norms = norms / known.to(home, torch.float64)
    elif known != 1:
        norms = norms / known
    values = norms.tolist()
    order = [i for members in groups.values() for i in members]
    return [value for _, value in sorted(zip(order, values, strict=True))]


def measured(grads: list[torch.Tensor], device: torch.device) -> torch.Tensor:
    """(P,) float64 norms of gradients of one type."""
    full = [g for g in grads if g.numel()]
    norms = torch.zeros(len(grads), dtype=torch.float64, device=device)
    if len(full) == len(grads):
        return tensor_norms(full, device)
    norms[[i for i, g in enumerate(grads) if g.numel()]] = tensor_norms(full, device)
    return norms


def scale_of(scale: Any) -> float | torch.Tensor:
    """The number or () tensor to divide by; of a GradScaler its own tensor, so that nothing waits for the device."""
    if scale is None:
        return 1.0
    if hasattr(scale, "get_scale"):
        own = getattr(scale, "_scale", None)
        scale = own if isinstance(own, torch.Tensor) else scale.get_scale()
    found: float | torch.Tensor = scale
    return found


def total_of(norms: dict[str, float]) -> float:
    """L2 norm of norms; NaN where one is."""
    return math.nan if any(map(math.isnan, norms.values())) else math.hypot(*norms.values())


def late_early_ratio(norms: dict[str, float]) -> float | None:
    """Late to early ratio of the layers; None of fewer than two, or where a norm is not finite."""
    each = [norm or 0.0 for norm in norms_by_layer(norms, norms.values()).values()]
    return late_to_early_ratio(each) if len(each) > 1 and all(map(math.isfinite, each)) else None


def by_size(norms: dict[str, float]) -> list[tuple[str, float]]:
    """Largest first; NaN before all."""
    return sorted(norms.items(), key=lambda item: math.inf if math.isnan(item[1]) else item[1], reverse=True)


def magnitudes(norms: dict[str, float], total: float) -> list[str]:
    if not norms:
        return ["no parameter has a gradient: call this after backward and before zero_grad"]
    ranked = by_size(norms)
    lines = [f"gradient norm: {total:.4g}, of {len(norms)} parameters", "largest:"]
    lines += [f"  {norm:<10.4g} {name}" for name, norm in ranked[:SHOWN]]
    return [*lines, "smallest:", *(f"  {norm:<10.4g} {name}" for name, norm in ranked[::-1][:SHOWN])]


def findings(found: dict[str, Any], low: float, high: float) -> list[str]:
    """The findings in sentences, with causes and what to do."""
    total, norms = found["total_norm"], found["param_norms"]
    nan, inf, zero, without = (several(found[name], SHOWN) for name in ("nan", "inf", "zero", "no_gradient"))
    lines = magnitudes(norms, total)
    if nan:
        lines.append(f"NaN in {nan}: 0/0, inf - inf or the root of 0 on the way, or weights or inputs")
        lines.append("  that were NaN before; look at the loss and at the outputs of the modules")
    if inf:
        lines.append(f"infinite: {inf}: a number left its type's range (65504 in fp16), or x/0")
    if total > high:
        lines.append(f"exploding? the norm is {total:.4g}, over {high:g}; largest: {top(found['exploding'])}")
        lines.append("  clip the norm before the step, at what is usual in this run; then lower the learning rate")
    if norms and total < low:
        lines.append(f"vanishing? the norm is {total:.4g}, under {low:g}")
        lines.append("  is the loss at its minimum? else: activation, initialisation, normalisation, residual paths")
    elif found["vanishing"]:
        lines.append(f"under {low:g}: {top(found['vanishing'])}")
    if zero:
        lines.append(f"all zeros: {zero}: dead units, or flushed to zero in half precision")
    if norms and without:
        lines.append(f"no gradient: {without}: not used by the loss, or detached from it")
    ratio = found["late_early_ratio"]
    if ratio is not None and (ratio > 1000 or ratio < 1e-3):
        lines.append(f"late layers' gradients are {ratio:.3g} times the early ones'")
    return lines


def top(pairs: list[tuple[str, float]]) -> str:
    ranked = sorted(pairs, key=lambda pair: pair[1], reverse=True)[:SHOWN]
    return ", ".join(f"{name} {norm:.3g}" for name, norm in ranked)
