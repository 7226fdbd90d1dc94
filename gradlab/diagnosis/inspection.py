"""One forward and backward pass over the final model: its modules' outputs, and what fp16 flushes of its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gradlab.base.randomness import random_state, set_random_state
from gradlab.diagnosis.series import late_to_early
from gradlab.measure.activations import Activations
from gradlab.update.clip import layers_of
from gradlab.update.gradients import tensor_norms
from gradlab.update.loss import Loss
from gradlab.update.precision import Precision


@dataclass
class ModuleOutput:
    """One module's output on a batch of training data."""

    name: str
    kind: str
    rms: float
    max: float
    saturated: float | None
    dead: float | None


@dataclass
class Inspection:
    """What was measured."""

    modules: list[ModuleOutput] = field(default_factory=list)
    """In the order of execution."""
    flushed: float | None = None
    """Fraction of the gradient's elements, of those not zero in fp32, that are zero in fp16."""
    layer_ratio: float | None = None
    """Late to early ratio of layers' gradient norms in fp32, where the run was in fp16."""


def inspect_model(
    model: torch.nn.Module,
    loss_fn: Loss,
    precision: Precision,
    batches: Sequence[tuple[torch.Tensor, torch.Tensor]],
    modules: list[str],
    order: list[str],
) -> Inspection:
    """Run one forward pass, under fp16 also two backward passes, and restore the buffers.

    batches: micro-batches, of which the first is used. modules: names in the order of execution. order: of layers.
    The caller restores the random state.
    """
    inputs, targets = batches[0]
    buffers = [b.clone() for b in model.buffers()]
    activations = Activations(model, modules)
    found = Inspection()
    try:
        with torch.no_grad(), activations.watching(), precision.arithmetic(), precision.autocast():
            model(inputs)
        for name, row in zip(modules, activations.table(precision.device).tolist(), strict=True):
            rms, largest, saturated, dead = (None if v != v else v for v in row)
            if name in activations.latest:
                kind = type(model.get_submodule(name)).__name__
                found.modules.append(ModuleOutput(name, kind, rms or 0.0, largest or 0.0, saturated, dead))
        if precision.dtype == torch.float16:
            compare_gradients(found, model, loss_fn, precision, inputs, targets, order)
        return found
    finally:
        for b, before in zip(model.buffers(), buffers, strict=True):
            b.copy_(before)
        model.zero_grad(set_to_none=True)


def compare_gradients(
    inspection: Inspection,
    model: torch.nn.Module,
    loss_fn: Loss,
    half: Precision,
    inputs: Any,
    targets: Any,
    order: list[str],
) -> None:
    """Compare the gradient in fp16, with its loss scale, with that in fp32."""
    gradients: list[dict[str, torch.Tensor]] = []
    state = random_state()
    for precision in (half, Precision(half.device)):
        set_random_state(state)
        model.zero_grad(set_to_none=True)
        with precision.arithmetic():
            with precision.autocast():
                total = loss_fn.sum(model(inputs), targets)
            (total * (precision.scale / loss_fn.divisor(loss_fn.count(targets).clamp(min=1)))).backward()
        gradients.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    low, full = gradients
    names = [n for n in full if n in low]
    some = torch.stack([(full[n] != 0).sum() for n in names]).double()
    lost = torch.stack([((full[n] != 0) & (low[n] == 0)).sum() for n in names]).double()
    if some.sum() > 0:
        inspection.flushed = (lost.sum() / some.sum()).item()
    layers, index = layers_of(names)
    squares = [0.0] * len(layers)
    for i, norm in zip(index, tensor_norms([full[n] for n in names]).tolist(), strict=True):
        squares[i] += norm**2
    place = {name: i for i, name in enumerate(order)}
    ordered = sorted(range(len(layers)), key=lambda i: place.get(layers[i], len(place)))
    if len(layers) > 1:
        inspection.layer_ratio = late_to_early([squares[i] ** 0.5 for i in ordered])
