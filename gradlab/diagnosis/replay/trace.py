"""Follow a forward and backward pass: which operation made the first non-finite number, and in which module.

Hooks on modules locate the forward pass; autograd's sequence numbers of nodes assign each backward operation to a
module, functional code, shared modules and recomputed activations included. A non-finite output of a module, loss or
gradient of a parameter is noticed; from there the trace leads back to the operation that made it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import set_checkpoint_early_stop

from gradlab.diagnosis.replay.operations import Operations, storage
from gradlab.diagnosis.replay.ranges import Range, finite, largest, mask, tensors_of
from gradlab.diagnosis.replay.traced import Call, Maker, NonFiniteTensor, Origin


class Trace(Operations):
    """Enter it inside of the precision's arithmetic, around the forward and the backward pass."""

    def __init__(self, model: torch.nn.Module, limit: float | None = None) -> None:
        """limit: a module's output or its gradient above this counts too."""
        super().__init__()
        self.model, self.limit = model, limit
        self.numbers: dict[tuple[int, str], int] = {}
        self.found: list[NonFiniteTensor] = []
        self.ends: list[Range] = []
        """Of the outputs and targets where a loss is not finite."""
        self.batch = 0
        for name, b in model.named_buffers():
            if any(True for _ in tensors_of(b)) and not finite(b):
                self.origins[storage(b)] = Origin(Maker(0, "", None, None), False, mask(b), given=name)

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Hook every module and every parameter; recompute whole modules, so that each call ends."""
        with ExitStack() as self.handles, set_checkpoint_early_stop(False):
            for name, module in self.model.named_modules():
                self.keep(module.register_forward_pre_hook(partial(self.enter_module, name), with_kwargs=True))
                self.keep(module.register_forward_hook(self.leave_module, with_kwargs=True))
            for name, p in self.model.named_parameters():
                if p.requires_grad and p.is_leaf:
                    self.keep(p.register_post_accumulate_grad_hook(partial(self.look_at_parameter, name)))
            yield

    def keep(self, handle: Any) -> None:
        self.handles.callback(handle.remove)

    def enter_module(self, name: str, module: torch.nn.Module, inputs: Any, keywords: Any) -> None:
        number = 0  # recomputed
        if not self.backward:
            number = self.numbers[self.batch, name] = self.numbers.get((self.batch, name), 0) + 1
        node = torch._C._autograd._get_sequence_nr()
        parent = self.stack[-1] if self.stack else None
        self.stack.append(Call(name, module, number, self.batch, self.order, node, (inputs, keywords), parent))

    def leave_module(self, module: torch.nn.Module, inputs: Any, keywords: Any, output: Any) -> None:
        call = self.stack.pop()
        while call.module is not module:  # it raised, and its caller caught that
            call = self.stack.pop()
        call.done, call.last_node, call.inputs = self.order, torch._C._autograd._get_sequence_nr(), None
        self.calls.append(call)
        with self.aside():
            call.output = largest(output)
            for tensor in tensors_of(output):
                self.look(tensor, "forward", call)
        for tensor in tensors_of(output):
            if tensor.requires_grad:
                self.keep(tensor.register_hook(partial(self.look_back, self.original(call))))

    def original(self, call: Call) -> Call:
        """The call that a recomputed one repeats, where the module has one only."""
        if call.number or self.numbers.get((call.batch, call.name)) != 1:
            return call
        return next(c for c in self.calls if (c.batch, c.name) == (call.batch, call.name))

    def look_back(self, call: Call, grad: torch.Tensor) -> None:
        with self.aside():
            value = largest(grad)
            call.grad = value if call.grad is None or value is None or value != value else max(call.grad, value)
            call.grad_done = self.order
            self.look(grad, "backward", call)

    def look_at_parameter(self, name: str, p: torch.Tensor) -> None:
        with self.aside():
            if p.grad is not None:
                self.look(p.grad, "gradient", None, name)

    def look(self, tensor: torch.Tensor, what: str, call: Call | None = None, name: str = "") -> None:
        """Record a tensor that is not finite, or above the limit."""
        if finite(tensor):
            value = largest(tensor) if self.limit is not None and call is not None else None
            if value is not None and self.limit is not None and value > self.limit:
                self.found.append(NonFiniteTensor(self.order, what, call, name, self.batch, None, value))
            return
        origin = self.origins.get(storage(tensor)) if tensor.layout == torch.strided else None
        constant = what == "forward" and not tensor.requires_grad
        if mask(tensor) and (constant or (origin is not None and origin.masks)):
            return
        order = self.order if origin is None else origin.maker.order
        self.found.append(NonFiniteTensor(order, what, call, name, self.batch, origin))

    def first(self) -> NonFiniteTensor | None:
        """The first in the order of execution."""
        return min(self.found, key=lambda f: f.order, default=None)
