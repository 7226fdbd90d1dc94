"""One more pass over the final model: where its activations are flat, and what fp16 flushes of its gradients."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.dropout import _DropoutNd

from gradlab.base.randomness import random_state, set_random_state
from gradlab.data.tree import samples
from gradlab.measure.activations import FIELDS, Activations
from gradlab.measure.untouched import untouched
from gradlab.update.gradients import tensor_norms
from gradlab.update.layers import late_to_early_ratio, norms_by_layer
from gradlab.update.loss import CrossEntropy, Loss, classes_last
from gradlab.update.precision import Precision

if TYPE_CHECKING:
    from gradlab.measure.flat_units import FlatCall

CLOSE = 0.01
"""Distance of a sum of probabilities from 1 that is rounding."""


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
        """The activation, or the operation that is one in a module of others."""
        what = f"{self.operation} in " if self.operation and self.operation.lower() != self.kind.lower() else ""
        call = f"call {self.call} of {self.calls}" if self.calls > 1 else ""
        return f"{what}{self.name or 'the model'} ({', '.join(filter(None, (self.kind, call)))})"


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
    batch_norm_samples: int | None = None
    """Values of each channel over which the batch norm that sees fewest normalises at a time, where there is one."""
    output_bound: float = math.inf
    """Largest magnitude that the model can return: of what the last sigmoid or tanh does, times some number."""
    probabilities: bool = False
    """Whether the model returns probabilities to a loss that takes a softmax of what it is given."""
    dropout: tuple[str, float] | None = None
    """The dropout of the model that takes most: its module, and what part of its input."""
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
    with untouched(model):
        found = of_forward_passes(model, loss_fn, precision, batches, modules)
        if precision.dtype == torch.float16:
            compare_gradients(found, model, loss_fn, precision, *batches[0], order)
        return found


def of_forward_passes(
    model: torch.nn.Module, loss_fn: Loss, precision: Precision, batches: Sequence[Any], modules: list[str]
) -> Inspection:
    """What is measured without a gradient, of all micro-batches; of the time steps of recurrent modules, of the first.

    It changes buffers.
    """
    from gradlab.measure.flat_units import FlatUnits  # loads PyTorch: not before the configuration was checked

    recurrent, units = Activations(model, modules), FlatUnits(model)
    returned, normalised = list[Any](), list[int]()
    last: torch.Tensor | None = None
    for i, (each, _) in enumerate(batches):
        watched = recurrent.watching() if i == 0 else nullcontext()
        arithmetic = precision.arithmetic(), precision.autocast()
        with torch.no_grad(), watched, arithmetic[0], units.watching(), arithmetic[1], batch_norms(model) as over:
            returned.append(model(each))
            last = units.last
        normalised += [min(over)] if over else []
    found = Inspection(samples=sum(samples(each) for each, _ in batches))
    found.batch_norm_samples = max(normalised, default=None)  # of the last batch of a set there may be fewer
    drops = ((name, float(m.p)) for name, m in model.named_modules() if isinstance(m, _DropoutNd) and m.training)
    found.dropout = max(drops, key=lambda each: each[1], default=None)
    found.normalised, found.residual = units.has("normalised"), units.has("residual")
    found.activations = of_recurrent(model, modules, recurrent.table(precision.device).tolist())
    found.activations += outputs(units.calls, found.samples)
    if all(isinstance(y, torch.Tensor) and y.is_floating_point() and y.numel() for y in returned):
        found.output_bound = bound(returned[-1], last)
        found.probabilities = isinstance(loss_fn, CrossEntropy) and all(
            probabilities(classes_last(y, t)) for y, (_, t) in zip(returned, batches, strict=True)
        )
    return found


def of_recurrent(model: torch.nn.Module, modules: list[str], table: list[list[float]]) -> list[ActivationOutput]:
    """What was measured of recurrent modules, whose activations are within one operation; NaN: they have none."""
    shares = [row[FIELDS.index("saturated")] for row in table]
    known = [(name, share) for name, share in zip(modules, shares, strict=True) if share == share]
    return [ActivationOutput(name, type(model.get_submodule(name)).__name__, share, None) for name, share in known]


@contextmanager
def batch_norms(model: torch.nn.Module) -> Iterator[list[int]]:
    """Gets of each batch norm that uses the statistics of its batch how many values of each channel it was given."""
    over = list[int]()

    def note(module: torch.nn.Module, inputs: Any) -> None:
        if inputs and (module.training or module.running_mean is None):
            over.append(inputs[0].numel() // inputs[0].shape[1])

    found = [m for m in model.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    hooks = [m.register_forward_pre_hook(note) for m in found]
    try:
        yield over
    finally:
        for hook in hooks:
            hook.remove()


def bound(outputs: torch.Tensor, last: torch.Tensor | None) -> float:
    """The number by which outputs are what an activation of up to 1 returned last; infinite where they are not."""
    if last is None or last.numel() != outputs.numel() or not last.any():
        return math.inf
    times, last = (outputs.abs().max() / last.abs().max()).item(), last.reshape(outputs.shape)
    return times if torch.allclose(outputs.float(), times * last.float(), rtol=CLOSE) else math.inf


def probabilities(outputs: torch.Tensor) -> bool:
    """Whether outputs, (..., C), are none below zero and sum to 1."""
    return bool((outputs >= 0).all()) and bool(((outputs.float().sum(-1) - 1).abs() < CLOSE).all())


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
