"""Run a failing update again: which tensor was the first to leave the range of its type, and by how much."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

import torch

from gradlab.data.tree import first as first_tensor
from gradlab.diagnosis.replay.failure import OVERFLOW
from gradlab.diagnosis.replay.overflow import SUM, Overflow
from gradlab.diagnosis.replay.ranges import finite, range_of, tensors_of
from gradlab.measure.samples import steps_shown
from gradlab.measure.untouched import untouched
from gradlab.update.gradients import measure
from gradlab.update.loss import Loss
from gradlab.update.precision import Precision

if TYPE_CHECKING:
    from gradlab.diagnosis.replay.trace import Trace
    from gradlab.diagnosis.replay.traced import Call, NonFiniteTensor


@dataclass
class Replay:
    """A replayed update."""

    first: Overflow | None
    """The first tensor that is not finite; None if there is none."""
    calls: list[Call] = field(default_factory=list)
    """Every call of a module, in the order in which they ended; empty where the update did not start."""
    first_order: int | None = None
    """The number of operations before the first non-finite one."""
    loss: float | None = None
    """Mean over the update."""
    grad_norm: float | None = None
    cause: Overflow | None = None
    """The first that reaches the gradient, where it is another one because `first` was absorbed."""

    @property
    def finite(self) -> bool:
        """Whether the update could have been applied."""
        return self.grad_norm is not None and self.grad_norm - self.grad_norm == 0


def first_overflow_forward(
    model: torch.nn.Module, loss_fn: Loss, precision: Precision, inputs: torch.Tensor, targets: torch.Tensor
) -> Overflow | None:
    """The first non-finite tensor of a forward pass alone, in the mode that the model is in; buffers are restored."""
    from gradlab.diagnosis.replay.trace import Trace  # loads PyTorch: not before the configuration was checked

    trace = Trace(model)
    with untouched(model), torch.enable_grad(), steps_shown(model), trace.hooks():  # without gradient it may be a mask
        forward(trace, loss_fn, precision, inputs, targets)
    return report(trace, 0.0, 0.0, 1).first


def replay(
    model: torch.nn.Module,
    loss_fn: Loss,
    precision: Precision,
    batches: list[tuple[torch.Tensor, torch.Tensor]],
    ranks: int = 1,
    limit: float | None = None,
) -> Replay:
    """One update up to its gradient, forward and backward through every micro-batch.

    batches: the update's micro-batches, those of all ranks. limit: a larger output or gradient counts too.
    The caller restores the model, its gradients and the random state; buffers are restored here.
    """
    from gradlab.diagnosis.replay.trace import Trace  # loads PyTorch: not before the configuration was checked
    from gradlab.diagnosis.replay.traced import NonFiniteTensor

    if broken := beforehand(model, batches):
        return Replay(broken)
    trace = Trace(model, limit)
    with untouched(model):
        count = sum(loss_fn.count(targets) for _, targets in batches).clamp(min=1)  # type: ignore[union-attr]
        weight = precision.scale * ranks / loss_fn.divisor(count)
        total = torch.zeros((), device=precision.device)
        with steps_shown(model), trace.hooks():
            for trace.batch, (inputs, targets) in enumerate(batches):
                total += one_batch(trace, loss_fn, precision, inputs, targets, weight)
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        grads = [p.grad for _, p in named if p.grad is not None]
        whole = all(finite(g) for g in grads)
        precision.unscale_(grads)
        if ranks > 1 and grads:  # DDP's mean; here all ranks' batches were added up
            torch._foreach_div_(grads, ranks)
        for name, p in named if whole else []:
            if p.grad is not None and not finite(p.grad):
                trace.found.append(NonFiniteTensor(trace.order, "unscale", None, name, len(batches) - 1, None))
        norms = measure([n for n, _ in named], [p for _, p in named], precision.device)
        return report(trace, (total / count).item(), norms.total.item(), len(batches))


def beforehand(model: torch.nn.Module, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> Overflow | None:
    """What was not finite before the update."""
    for name, p in model.named_parameters():
        if not finite(p):
            return Overflow("parameters", name, type(p).__name__, ranges=[range_of(name, p)])
    for i, batch in enumerate(batches, 1):
        for what, tensor in zip(("inputs", "targets"), batch, strict=True):
            if not finite(tensor):
                where = {"micro_batch": i, "micro_batches": len(batches)}
                broken = next(t for t in tensors_of(tensor) if not finite(t))
                return Overflow(what, "", "", ranges=[range_of(what, broken)], **where)  # type: ignore[arg-type]
    return None


def one_batch(
    trace: Trace,
    loss_fn: Loss,
    precision: Precision,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    weight: torch.Tensor,
) -> torch.Tensor:
    """One micro-batch, forward and backward; weight: what its sum of losses is multiplied with."""
    loss = forward(trace, loss_fn, precision, inputs, targets)
    with precision.arithmetic(), trace:
        trace.backward = True
        (loss * weight).backward()
    return loss.detach()


def forward(
    trace: Trace, loss_fn: Loss, precision: Precision, inputs: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """The forward pass of a micro-batch, up to the sum of its losses."""
    with precision.arithmetic(), trace:
        trace.backward = False
        with precision.autocast():
            outputs = trace.model(inputs)
            loss = loss_fn.sum(outputs, targets)
        with trace.aside():
            trace.look(loss, "loss")
            if not finite(loss) and not trace.ends:
                trace.ends = [
                    range_of(name, first_tensor(tree)) for name, tree in (("outputs", outputs), ("targets", targets))
                ]
    return loss


def report(trace: Trace, loss: float, grad_norm: float, batches: int) -> Replay:
    """Make the result of what was traced."""
    first = trace.first()
    if first is None:
        return Replay(None, trace.calls, None, loss, grad_norm)
    reaches = [f for f in trace.found if f.what in ("loss", "gradient") and f.origin is not None]
    cause = min(reaches, key=lambda f: f.order, default=None)
    found = Replay(overflow(trace, first, batches), trace.calls, first.order, loss, grad_norm)
    if cause is not None and cause.order > first.order:
        found.cause = overflow(trace, cause, batches)
    return found


def overflow(trace: Trace, finding: NonFiniteTensor, batches: int) -> Overflow:
    """The description of a non-finite tensor."""
    origin, noticed = finding.origin, finding.call
    owner = noticed if origin is None else trace.owner(origin.maker)
    phase = finding.what
    if origin is not None and not origin.backward and phase != "loss":
        phase = "forward"  # noticed late: it was absorbed, and reappeared in the backward pass
    elif phase == "gradient" and origin is not None and not only_of_one_parameter(trace, finding):
        phase = "backward"  # the parameter noticed it first
    result = Overflow(phase, "", "", micro_batch=finding.batch + 1, micro_batches=batches)
    if origin is not None:
        result.operation, result.rounded = origin.maker.name or None, origin.rounded
        result.input_max, result.output_max, result.limit = origin.input_max, origin.output_max, origin.limit
        result.operand_max = origin.operand_max
        result.failure, result.derivative = origin.failure or OVERFLOW, origin.derivative
        result.ranges = origin.ranges
    if origin is not None and origin.given is not None:
        result.phase, result.module, result.kind = "buffers", origin.given, "Tensor"
    elif phase in ("gradient", "unscale"):
        result.module, result.kind, result.inside = finding.name, "Parameter", owner.name if owner else None
    else:
        if origin is not None and origin.summed and noticed is not None:
            owner, result.operation = noticed, SUM
        if phase == "loss" and owner is not None:
            result.phase = "forward"
        elif phase == "forward" and owner is None:
            owner = noticed
        elif phase == "forward" and owner and noticed and noticed.within(owner) and noticed.begun >= finding.order:
            result.phase, result.inside, owner = "between", owner.name, noticed
        if owner is not None:
            result.module, result.kind, result.call = owner.name, owner.kind, owner.number
            result.calls = trace.numbers.get((owner.batch, owner.name), 1)
    if result.phase == "loss" and trace.ends:
        result.outputs, result.targets = trace.ends
    if finding.value is not None:
        result.output_max, result.beyond = finding.value, trace.limit
    healthy = last_healthy(trace, finding.order, backward=result.phase in ("backward", "gradient", "unscale"))
    if healthy is not None:
        result.healthy, value = healthy.name, healthy.grad if result.phase == "backward" else healthy.output
        result.healthy_max = value
    return result


def only_of_one_parameter(trace: Trace, finding: NonFiniteTensor) -> bool:
    """Whether the gradient of one parameter overflowed, and not one that others are computed from."""
    same = [f for f in trace.found if f.origin is finding.origin]
    size = trace.model.get_parameter(finding.name).numel()
    of_that_size = finding.origin is None or prod(finding.origin.ranges[-1].shape) == size
    return of_that_size and {(f.what, f.name) for f in same} == {("gradient", finding.name)}


def last_healthy(trace: Trace, order: int, backward: bool) -> Call | None:
    """The last module that finished with a finite output or gradient before so many operations."""

    def when(call: Call) -> int:
        return call.grad_done if backward else call.done

    def value(call: Call) -> float | None:
        return call.grad if backward else call.output

    well = [c for c in trace.calls if c.number and 0 < when(c) < order and (v := value(c)) is not None and v - v == 0]
    return max(well, key=when, default=None)
