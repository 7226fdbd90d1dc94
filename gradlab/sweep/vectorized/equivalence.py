"""Whether lanes compute what a single run does, compared in one forward and backward pass of both."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from gradlab.base import randomness
from gradlab.measure.activations import tensor_of
from gradlab.measure.samples import steps_shown
from gradlab.sweep.vectorized.lane_rules import LaneRules
from gradlab.update.loss import Loss

NEAR = 1e-2
"""Largest distance of a lane's gradient from that of the job alone, in units of its norm, that needs no second look."""
SAME = 1e-6
"""The same in double precision, where rounding explains nothing."""


def drawn() -> tuple[Any, ...]:
    """The state of every generator that a model or its data may draw from: another one once they have."""
    state = randomness.all_random_state()
    kind, keys, *rest = state.get("numpy", ("", torch.zeros(0)))
    return state["cpu"].numpy().tobytes(), state["python"], kind, keys.numpy().tobytes(), *rest


ITS_OWN = frozenset(vars(nn.Module())) - {"training"}
"""Where a module keeps its parameters, buffers, parts and hooks."""


def plain_state(module: nn.Module) -> dict[tuple[str, str], Any]:
    """What modules keep as plain attributes, the same for all lanes: numbers, words, tensors and lists of them."""
    kept = ((n, k, content(v)) for n, m in module.named_modules() for k, v in vars(m).items() if k not in ITS_OWN)
    return {(name, key): value for name, key, value in kept if value is not None}


def content(value: Any) -> Any:
    """What can be compared of an attribute after it may have changed in place; None where nothing can."""
    if isinstance(value, nn.Parameter | nn.Module):
        return None
    if isinstance(value, Tensor):
        flat = value.detach().cpu().contiguous().flatten()
        return str(value.dtype), tuple(value.shape), flat.view(torch.uint8).numpy().tobytes()
    if isinstance(value, dict):
        return tuple((repr(k), content(v)) for k, v in value.items())
    if isinstance(value, list | tuple | deque):
        return tuple(map(content, value))
    return repr(value) if isinstance(value, bool | int | float | str | None) else None


@contextmanager
def dtypes(module: nn.Module) -> Iterator[list[tuple[str, str]]]:
    """Each module's name and the dtype of its output, in the order in which they are called inside."""
    seen: list[tuple[str, str]] = []

    def note(name: str) -> Any:
        def after(inner: nn.Module, inputs: Any, output: Any) -> None:
            if (found := tensor_of(output)) is not None:
                seen.append((name, str(found.dtype).removeprefix("torch.")))

        return after

    handles = [inner.register_forward_hook(note(name)) for name, inner in module.named_modules()]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def near(grads: Sequence[Tensor], wanted: Sequence[Tensor], bound: float) -> bool:
    """Whether a gradient is as near to another; one that is not finite cannot be compared."""
    norm = sum(w.double().square().sum() for w in wanted)
    apart = sum((s.double() - w.double()).square().sum() for s, w in zip(grads, wanted, strict=True))
    return not norm < float("inf") or bool(apart <= bound**2 * norm)


def same_in_double(module: nn.Module, loss: Loss, x: Tensor, y: Tensor, names: Sequence[str]) -> bool:
    """Whether a module has the same gradient under vmap as alone, with double precision throughout.

    In less, a deep model's gradient may be rounding for the most part. names: parameters that have a gradient.
    """
    state = {k: double(v.detach()) for k, v in (*module.named_parameters(), *module.named_buffers())}
    x, y = double(x), double(y)

    def total(trained: dict[str, Tensor], rest: dict[str, Tensor]) -> Tensor:
        return loss.sum(functional_call(module, {**rest, **trained}, (x,)), y)

    def grads(lanes: bool) -> list[Tensor]:
        own = {k: v.clone().expand(2, *v.shape).clone() if lanes else v.clone() for k, v in state.items()}
        trained = {k: own.pop(k).requires_grad_() for k in names}
        if lanes:
            with steps_shown(module), LaneRules():
                value = vmap(total, randomness="error")(trained, own).sum()
        else:
            value = total(trained, own)
        return list(torch.autograd.grad(value, [trained[k] for k in names]))

    try:
        return near([rows[0] for rows in grads(True)], grads(False), SAME)
    except RuntimeError:  # some of it is in fp32 whatever it is given
        return False


def double(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x
