"""A last look at the model when a run has ended: what its modules give, and what fp16 takes from its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from gradlab.base.randomness import random_state, set_random_state
from gradlab.diagnosis.rules.layers import late_to_early
from gradlab.measure.activations import Activations
from gradlab.update.clip import layers_of
from gradlab.update.gradients import tensor_norms

if TYPE_CHECKING:
    from gradlab.update.loss import Loss
    from gradlab.update.precision import Precision


@dataclass
class Seen:
    """One module's output on a batch of training data."""

    name: str
    kind: str
    rms: float
    max: float
    saturated: float | None
    dead: float | None


@dataclass
class Look:
    """What was seen."""

    modules: list[Seen] = field(default_factory=list)
    """In the order of execution."""
    flushed: float | None = None
    """Fraction of the gradient's elements, of those not zero in fp32, that are zero in fp16."""
    layer_ratio: float | None = None
    """Late to early ratio of layers' gradient norms in fp32, where the run was in fp16."""


def look_at(
    model: torch.nn.Module,
    loss_fn: Loss,
    precision: Precision,
    batches: Sequence[tuple[torch.Tensor, torch.Tensor]],
    modules: list[str],
    order: list[str],
) -> Look:
    """Run one forward pass, under fp16 also two backward passes, and leave everything as it was.

    batches: micro-batches, of which the first is looked at. modules: names in the order of execution. order: of layers.
    The random state is the caller's to keep.
    """
    inputs, targets = batches[0]
    buffers = [b.clone() for b in model.buffers()]
    seen = Activations(model, modules)
    look = Look()
    try:
        with torch.no_grad(), seen.watching(), precision.arithmetic(), precision.autocast():
            model(inputs)
        for name, row in zip(modules, seen.table(precision.device).tolist(), strict=True):
            rms, largest, saturated, dead = (None if v != v else v for v in row)
            if name in seen.latest:
                kind = type(model.get_submodule(name)).__name__
                look.modules.append(Seen(name, kind, rms or 0.0, largest or 0.0, saturated, dead))
        if precision.dtype == torch.float16:
            compare(look, model, loss_fn, precision, inputs, targets, order)
        return look
    finally:
        for b, before in zip(model.buffers(), buffers, strict=True):
            b.copy_(before)
        model.zero_grad(set_to_none=True)


def compare(
    look: Look, model: torch.nn.Module, loss_fn: Loss, half: Precision, inputs: Any, targets: Any, order: list[str]
) -> None:
    """The gradient in fp16, with its loss scale, beside that in fp32."""
    from gradlab.update.precision import Precision

    found: list[dict[str, torch.Tensor]] = []
    state = random_state()
    for precision in (half, Precision(half.device)):
        set_random_state(state)
        model.zero_grad(set_to_none=True)
        with precision.arithmetic():
            with precision.autocast():
                total = loss_fn.sum(model(inputs), targets)
            (total * (precision.scale / loss_fn.divisor(loss_fn.count(targets).clamp(min=1)))).backward()
        found.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    low, full = found
    names = [n for n in full if n in low]
    some = torch.stack([(full[n] != 0).sum() for n in names]).double()
    lost = torch.stack([((full[n] != 0) & (low[n] == 0)).sum() for n in names]).double()
    if some.sum() > 0:
        look.flushed = (lost.sum() / some.sum()).item()
    layers, index = layers_of(names)
    squares = [0.0] * len(layers)
    for i, norm in zip(index, tensor_norms([full[n] for n in names]).tolist(), strict=True):
        squares[i] += norm**2
    place = {name: i for i, name in enumerate(order)}
    ordered = sorted(range(len(layers)), key=lambda i: place.get(layers[i], len(place)))
    if len(layers) > 1:
        look.layer_ratio = late_to_early([squares[i] ** 0.5 for i in ordered])
