"""One more pass over the final model: where its activations are flat, and what fp16 flushes of its gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from gradlab.base.randomness import random_state, set_random_state
from gradlab.data.tree import samples
from gradlab.measure.activations import FIELDS, Activations
from gradlab.update.gradients import tensor_norms
from gradlab.update.layers import late_to_early_ratio, norms_by_layer
from gradlab.update.loss import Loss
from gradlab.update.precision import Precision

if TYPE_CHECKING:
    from gradlab.measure.flat_units import FlatCall


@dataclass
class ActivationOutput:
    """The output of one call of an activation, on a batch of training data."""

    name: str
    """The module in whose code it is."""
    kind: str
    saturated: float | None
    """Share of elements, or where it is flat at two ends of units, at which no gradient passes."""
    dead: float | None
    """Share of units that are at its lower end for every sample, or at either, most at the lower."""
    ends: str = "zero"
    """The values at which it is flat."""
    operation: str = ""
    call: int = 1
    calls: int = 1
    """Which call of the operation in this module, of how many."""
    same: bool = False
    """Whether what goes in is the same for every sample."""

    @property
    def where(self) -> str:
        what = self.operation if self.operation.lower() != self.kind.lower() else ""
        call = f"call {self.call} of {self.calls}" if self.calls > 1 else ""
        return f"{self.name or 'the model'} ({', '.join(filter(None, (self.kind, what, call)))})"


@dataclass
class Inspection:
    """What was measured."""

    activations: list[ActivationOutput] = field(default_factory=list)
    """Every call of one, in the order of execution."""
    samples: int = 0
    """On which they were measured."""
    flushed: float | None = None
    """Fraction of the gradient's elements, of those not zero in fp32, that are zero in fp16."""
    normalised: bool = False
    """Whether layers are normalised throughout."""
    residual: bool = False
    """Whether what goes into layers is added to what comes out of them, throughout."""
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
    """Run a forward pass of each micro-batch, under fp16 also two backward passes, and restore the buffers.

    batches: micro-batches, of which the first alone is used for the gradients. modules: names of recurrent ones, whose
    activations are within one operation. order: of layers. The caller restores the random state.
    """
    from gradlab.measure.flat_units import FlatUnits  # loads PyTorch: not before the configuration was checked

    inputs, targets = batches[0]
    buffers = [b.clone() for b in model.buffers()]
    recurrent, units = Activations(model, modules), FlatUnits(model)
    found = Inspection()
    try:
        for i, (each, _) in enumerate(batches):
            watched = recurrent.watching() if i == 0 else nullcontext()
            with torch.no_grad(), watched, precision.arithmetic(), units.watching(), precision.autocast():
                model(each)
        found.samples = sum(samples(each) for each, _ in batches)
        for name, row in zip(modules, recurrent.table(precision.device).tolist(), strict=True):
            if row[FIELDS.index("saturated")] == row[FIELDS.index("saturated")]:
                kind = type(model.get_submodule(name)).__name__
                found.activations.append(ActivationOutput(name, kind, row[FIELDS.index("saturated")], None))
        found.activations += outputs(units.calls, found.samples)
        found.normalised, found.residual = units.has("normalised"), units.has("residual")
        if precision.dtype == torch.float16:
            compare_gradients(found, model, loss_fn, precision, inputs, targets, order)
        return found
    finally:
        for b, before in zip(model.buffers(), buffers, strict=True):
            b.copy_(before)
        model.zero_grad(set_to_none=True)


def outputs(calls: Sequence[FlatCall], samples: int) -> list[ActivationOutput]:
    """What was measured of each call, in one transfer; units at either end count together. samples: of all passes."""
    if not calls:
        return []
    many = Counter((c.module, c.operation) for c in calls)
    found = []
    for c, (flat, low, same) in zip(calls, torch.stack([c.values for c in calls]).tolist(), strict=True):
        mostly_low = 2 * low >= flat
        dead = None if not c.ends else flat if mostly_low else low
        saturated = flat if not c.ends or (len(c.ends) > 1 and not mostly_low) else None
        named = " or ".join("zero" if end == 0 else f"{end:g}" for end in c.ends)
        number = many[c.module, c.operation]
        which = c.operation, c.number, number, bool(same) and c.rows == samples > 1
        found.append(ActivationOutput(c.module, c.kind, saturated, dead, named, *which))
    return found


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
    flushed = torch.stack([((full[n] != 0) & (low[n] == 0)).sum() for n in names]).double()
    if some.sum() > 0:
        inspection.flushed = (flushed.sum() / some.sum()).item()
    norms = norms_by_layer(names, tensor_norms([full[n] for n in names]).tolist())
    ordered = [name for name in dict.fromkeys([*order, *norms]) if name in norms]
    if len(norms) > 1:
        inspection.layer_ratio = late_to_early_ratio([norms[name] or 0.0 for name in ordered])
