"""Whether jobs can be lanes: a micro-batch of the first alone, and of two as lanes, must give the same gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from gradlab.base.option import Invalid
from gradlab.measure.memory import Kept
from gradlab.runs.job import Job
from gradlab.sweep.vectorized.equivalence import NEAR, drawn, dtypes, near, plain_state, same_in_double
from gradlab.sweep.vectorized.lane_update import Batch
from gradlab.sweep.vectorized.stack import Stack


class ProbeResult(NamedTuple):
    """What one micro-batch shows about a program."""

    used: list[str]
    """Names of the parameters that get a gradient."""
    kept: int
    """Bytes that a lane keeps for its backward pass."""
    state: int
    """Bytes of its weights, its gradient, and what its optimizer remembers."""


class Alone(NamedTuple):
    """A micro-batch, and what a single run computes from it."""

    inputs: Tensor
    targets: Tensor
    weight: Tensor | float
    kinds: list[tuple[str, Any]]
    """Types of the modules' outputs."""
    grads: dict[str, Tensor]
    before: dict[str, Tensor]
    """Buffers."""
    after: dict[str, Tensor]


def probe(jobs: Sequence[Job]) -> ProbeResult:
    """Try one or two jobs, whose trainers are lanes.

    Raises `Invalid` unless a lane's gradient is that of the job alone.
    """
    lanes: list[Any] = [job.trainer for job in jobs]
    first, module = lanes[0], lanes[0].module
    refuse = functools.partial(Invalid, "model", type(module).__name__)
    alone = by_itself(first, refuse)
    stack = Stack(jobs, lambda job, code: None, lambda job, error: 1, list(alone.grads))
    update, kept = stack.update, Kept()
    try:
        with update.precision.arithmetic(), saved_tensors_hooks(kept.pack, kept.unpack):
            part = update.weights.matrix.clone().requires_grad_()
            with update.precision.autocast(), dtypes(module) as kinds:
                losses = update.sums(Batch(alone.inputs, alone.targets, False), part, slice(None))
            (grad,) = torch.autograd.grad((losses * alone.weight).sum(), part)
    except Exception as error:
        raise refuse(f"cannot be trained under vmap: {' '.join(str(error).split())[:200]}") from None
    for (name, kind), (_, wanted) in zip(kinds, alone.kinds):
        if kind != wanted:
            raise refuse(f"returns {kind} under vmap in {name or 'its outputs'}, and {wanted} alone")
    for name, old in alone.before.items():
        if torch.equal(alone.after[name], old) != torch.equal(update.buffers[name][0], old):
            raise refuse(f"replaces its buffer {name}, which has no effect under vmap")
    try:
        stack.measured(torch.zeros(1, dtype=torch.long, device=update.device), first, batches=1)
    except Exception as error:
        raise refuse(f"cannot be evaluated under vmap: {' '.join(str(error).split())[:200]}") from None
    grads = [rows[0] for rows in update.weights.cut(grad)]
    trusted = near(grads, [alone.grads[name] for name in update.names], NEAR)
    if not trusted and not same_in_double(module, update.loss, alone.inputs, alone.targets, update.names):
        raise refuse("has another gradient under vmap than alone")
    state = 4 * update.weights.matrix[0].numel() * (5 + len(update.moments))
    return ProbeResult(list(alone.grads), max(1, kept.most // update.lanes), state)


def by_itself(lane: Any, refuse: Callable[[str], Invalid]) -> Alone:
    """One micro-batch of one job. Raises what `refuse` makes of a reason why it can be no lane."""
    alone, module = lane.update, lane.module
    if odd := [p.dtype for p in module.parameters() if p.dtype != torch.float32]:
        raise refuse(f"has parameters of {odd[0]}, and lanes are of torch.float32")
    before = {n: b.clone() for n, b in module.named_buffers()}
    generators, plain = drawn(), plain_state(module)
    batches, _ = lane.batches(0, 0, 1)
    x, y = batches[0].inputs, batches[0].targets
    weight = 1.0 / alone.loss.divisor(alone.loss.count(y).clamp(min=1))
    with alone.precision.arithmetic():
        with alone.precision.autocast(), dtypes(module) as kinds:
            loss = alone.loss.sum(module(x), y)
        (loss * weight).backward()
    if drawn() != generators:
        raise refuse("draws random numbers in its forward pass, or its data does")
    if changed := [k for k, v in plain_state(module).items() if v != plain.get(k)]:
        raise refuse(f"counts or remembers in {'.'.join(filter(None, changed[0]))}, which lanes would share")
    after = {n: b.clone() for n, b in module.named_buffers()}
    for name, buffer in module.named_buffers():
        buffer.copy_(before[name])
    grads = {n: p.grad for n, p in zip(alone.names, alone.params, strict=True) if p.grad is not None}
    alone.zero_grad()
    return Alone(x, y, weight, kinds, grads, before, after)
