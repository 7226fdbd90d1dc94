"""Run a failing update again with a look at every module: which left the range of its type first, and by how much."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from math import isfinite
from typing import Any

import torch

from gradlab.loss import Loss
from gradlab.precision import Precision

MODERATE = 1e4
"""Largest magnitude of an output that is of ordinary size."""


@dataclass
class Overflow:
    """The first tensor that is not finite."""

    phase: str
    """parameters, inputs, forward, between (two modules, in the forward pass), loss, backward or gradient."""
    module: str
    kind: str
    """Class of the module."""
    input_max: float | None = None
    """Largest magnitude that went in."""
    output_max: float | None = None
    """Largest magnitude of the same output computed in fp32."""
    healthy: str | None = None
    """The module that finished last with a finite output, and its largest magnitude."""
    healthy_max: float | None = None
    limit: float | None = None
    """Largest number of the type that the forward pass rounds to."""
    outputs: tuple[float, float] | None = None
    """Of the model, where the loss is what is not finite: the smallest and the largest."""
    targets: tuple[float, float] | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def moderate(self) -> bool:
        """Whether the model's outputs are of a size at which a loss has no reason to fail."""
        return self.outputs is not None and max(map(abs, self.outputs)) <= MODERATE

    @property
    def after(self) -> str:
        """What was still well."""
        if self.healthy is None:
            return "no module was done yet"
        return f"last well: {self.healthy or 'the model'}, at most {self.healthy_max or 0.0:.4g}"

    def __str__(self) -> str:
        if self.phase == "parameters":
            return f"the weights {self.module} are already not finite: an earlier update broke them"
        if self.phase == "inputs":
            return "the inputs are not finite"
        if self.phase == "loss":
            return f"every module's output is finite, the loss is not ({self.after})"
        name = f"{self.module or 'the model'} ({self.kind})"
        if self.phase == "between":
            return f"the arithmetic before {name} overflows first ({self.after})"
        if self.phase == "gradient":
            return (
                f"all outputs and their gradients are finite; the gradient of the weight {self.module} overflows first"
            )
        if self.phase == "backward":
            return f"the forward pass is finite; in the backward pass the gradient of {name}'s output overflows first"
        says = f"the output of {name} overflows first"
        if self.output_max is not None and self.limit is not None and isfinite(self.output_max):
            times = self.output_max / self.limit
            says += f": {self.output_max:.4g} in fp32, {times:.3g} times the largest number, {self.limit:g}"
        return f"{says}, from inputs of at most {self.input_max:.4g}" if self.input_max is not None else says


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """The floating-point tensors of a module's inputs or outputs."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_of(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_of(item)


def largest(value: Any) -> float | None:
    """Largest magnitude; None of no tensor."""
    return max((t.detach().abs().max().item() for t in tensors_of(value) if t.numel()), default=None)


def extremes(value: Any) -> tuple[float, float] | None:
    """Smallest and largest element; None of no tensor."""
    flat = [t.detach().float().flatten() for t in (value if isinstance(value, tuple | list) else [value])]
    low, high = torch.cat(flat).aminmax() if sum(t.numel() for t in flat) else (None, None)
    return None if low is None or high is None else (low.item(), high.item())


def finite(value: Any) -> bool:
    return all(bool(torch.isfinite(t).all()) for t in tensors_of(value))


@contextmanager
def hooked(model: torch.nn.Module, hook: Any) -> Iterator[None]:
    """Call hook(name, module, inputs, keywords, output) when a module is done: children before what holds them."""
    with ExitStack() as stack:
        for name, module in model.named_modules():
            handle = module.register_forward_hook(partial(hook, name), with_kwargs=True)
            stack.callback(handle.remove)
        yield


def first_overflow(
    model: torch.nn.Module,
    loss_fn: Loss,
    precision: Precision,
    batches: list[tuple[torch.Tensor, torch.Tensor]],
    ranks: int = 1,
) -> Overflow | None:
    """The first non-finite tensor in the order of execution, forward then backward; None if the update is finite.

    batches: the update's micro-batches, those of all ranks.
    The model, its gradients and the random state are the caller's to keep; buffers are put back.
    """
    for name, p in model.named_parameters():
        if not finite(p):
            return Overflow("parameters", name, type(p).__name__)
    buffers = [b.clone() for b in model.buffers()]
    try:
        count = sum(loss_fn.count(targets) for _, targets in batches).clamp(min=1)  # type: ignore[union-attr]
        weight = precision.scale * ranks / loss_fn.divisor(count)
        for inputs, targets in batches:
            if not finite(inputs):
                return Overflow("inputs", "", "")
            if found := replay_batch(model, loss_fn, precision, inputs, targets, weight):
                return found
        return None
    finally:
        for b, saved in zip(model.buffers(), buffers, strict=True):
            b.copy_(saved)
        model.zero_grad(set_to_none=True)


def replay_batch(
    model: torch.nn.Module,
    loss_fn: Loss,
    precision: Precision,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    weight: torch.Tensor,
) -> Overflow | None:
    """One micro-batch, forward and backward; weight: what its sum of losses is multiplied with."""
    found: list[Overflow] = []
    healthy: tuple[str, float | None] | None = None  # the module that finished last with a finite output
    again = False

    def note(phase: str, name: str = "", module: Any = None, **numbers: Any) -> None:
        last, largest_there = healthy or (None, None)
        kind = type(module).__name__ if module is not None else ""
        found.append(Overflow(phase, name, kind, healthy=last, healthy_max=largest_there, **numbers))

    def look(name: str, module: torch.nn.Module, inputs: Any, keywords: Any, output: Any) -> None:
        nonlocal healthy, again
        if found or again:
            return
        given = (inputs, keywords)
        if finite(output):
            healthy = name, largest(output)
            for tensor in tensors_of(output):
                if tensor.requires_grad:
                    tensor.register_hook(partial(look_back, name, module))
        elif finite(given):
            limit = torch.finfo(precision.dtype or torch.float32).max
            again = True  # the module's own children pass here once more
            wide = largest(in_fp32(module, inputs, keywords))
            again = False
            note("forward", name, module, input_max=largest(given), output_max=wide, limit=limit)
        else:
            note("between", name, module)

    def look_back(name: str, module: torch.nn.Module, grad: torch.Tensor) -> None:
        if not found and not finite(grad):
            note("backward", name, module)

    with hooked(model, look), precision.arithmetic():
        with precision.autocast():
            outputs = model(inputs)
            loss = loss_fn.sum(outputs, targets)
        if not found and not finite(loss):
            note("loss")
            found[0].outputs, found[0].targets = extremes(outputs), extremes(targets)
        if not found:
            (loss * weight).backward()
            for name, p in reversed(list(model.named_parameters())):
                if not found and p.grad is not None and not finite(p.grad):
                    note("gradient", name, p)
    return found[0] if found else None


def in_fp32(module: torch.nn.Module, inputs: Any, keywords: Any) -> Any:
    """The module's output with fp32 inputs and autocast off: what fp16 could not hold; None where it cannot run so."""
    device = next((t.device.type for t in tensors_of((inputs, keywords))), "cpu")

    def wide(value: Any) -> Any:
        return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    with torch.no_grad(), torch.autocast(device, enabled=False):
        try:
            return module.forward(*map(wide, inputs), **{name: wide(value) for name, value in keywords.items()})
        except RuntimeError:  # a user's module may insist on a type
            return None
