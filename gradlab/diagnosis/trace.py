"""Follow every operation of a forward and backward pass: which made the first number that is not finite, and in what.

Hooks on modules say where the forward pass is; the sequence numbers that autograd gives its nodes say in which module
a backward operation belongs, functional code, shared modules and recomputed activations included. A finding is what is
not finite in the output of a module, the loss or the gradient of a parameter; from there the trace leads back to the
operation that made it. A mask's minus infinities, which a softmax absorbs, are nobody's fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import set_checkpoint_early_stop

from gradlab.checkpoint import random_state, set_random_state
from gradlab.diagnosis.ranges import Range, finite, largest, mask, range_of, tensors_of

FILLS = {"full", "full_like", "fill", "fill_", "masked_fill", "masked_fill_", "where", "scalar_tensor", "lift_fresh"}
"""Operations that write a given number: minus infinity is then what was wanted."""
NEW = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_"}
"""Operations whose result has no numbers yet."""


@dataclass(eq=False)
class Call:
    """One call of a module, in one micro-batch."""

    name: str
    module: torch.nn.Module
    number: int
    batch: int
    begun: int
    """Operations before it."""
    first_node: int
    inputs: tuple[Any, Any] | None
    parent: Call | None = None
    """The call that this one is part of."""
    last_node: int = 0
    done: int = 0
    output: float | None = None
    """Largest magnitude of its outputs; NaN where one is."""
    grad: float | None = None
    """The same of the gradient of its outputs."""
    grad_done: int = 0

    @property
    def kind(self) -> str:
        return type(self.module).__name__

    def within(self, other: Call) -> bool:
        """Whether this is a part of another call, at any depth."""
        return self.parent is not None and (self.parent is other or self.parent.within(other))


class Maker(NamedTuple):
    """What computed a tensor: the operation, its place in the order of execution, and the module or node it was for."""

    order: int
    name: str
    call: Call | None
    node: int | None


@dataclass
class Origin:
    """The operation that made the first number that is not finite out of finite ones."""

    maker: Maker
    backward: bool
    masks: bool
    summed: bool = False
    """Whether it added up the gradients of several uses."""
    given: str | None = None
    """What was not finite beforehand."""
    rounded: str | None = None
    """What of the module it was that a narrower type could not hold: a weight's name, or input."""
    input_max: float | None = None
    output_max: float | None = None
    limit: float | None = None
    ranges: list[Range] = field(default_factory=list)


@dataclass
class Finding:
    """Where a number that is not finite was noticed: what it is of, and where it came from."""

    order: int
    what: str
    call: Call | None
    name: str
    batch: int
    origin: Origin | None
    value: float | None = None


def storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


class Trace(TorchDispatchMode):
    """Enter it inside of the precision's arithmetic, round the forward and the backward pass."""

    def __init__(self, model: torch.nn.Module, limit: float | None = None) -> None:
        """limit: a module's output or its gradient beyond this is a finding too."""
        super().__init__()
        self.model, self.limit = model, limit
        self.calls: list[Call] = []  # in the order in which they ended
        self.stack: list[Call] = []
        self.numbers: dict[tuple[int, str], int] = {}
        self.found: list[Finding] = []
        self.ends: list[Range] = []
        """Of the outputs and targets where a loss is not finite."""
        self.origins: dict[int, Origin] = {}  # by storage
        self.makers: dict[int, Maker] = {}
        self.order = self.batch = 0
        self.backward = self.quiet = False
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

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What is computed to look at numbers is no part of the update."""
        before, self.quiet = self.quiet, True
        try:
            with torch.no_grad():
                yield
        finally:
            self.quiet = before

    def enter_module(self, name: str, module: torch.nn.Module, inputs: Any, keywords: Any) -> None:
        number = 0  # recomputed
        if not self.backward:
            number = self.numbers[self.batch, name] = self.numbers.get((self.batch, name), 0) + 1
        node = torch.autograd._get_sequence_nr()
        parent = self.stack[-1] if self.stack else None
        self.stack.append(Call(name, module, number, self.batch, self.order, node, (inputs, keywords), parent))

    def leave_module(self, module: torch.nn.Module, inputs: Any, keywords: Any, output: Any) -> None:
        call = self.stack.pop()
        while call.module is not module:  # one that raised, and whoever called it went on
            call = self.stack.pop()
        call.done, call.last_node, call.inputs = self.order, torch.autograd._get_sequence_nr(), None
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
        """Note a finding if there is one."""
        if finite(tensor):
            value = largest(tensor) if self.limit is not None and call is not None else None
            if value is not None and self.limit is not None and value > self.limit:
                self.found.append(Finding(self.order, what, call, name, self.batch, None, value))
            return
        origin = self.origins.get(storage(tensor)) if tensor.layout == torch.strided else None
        constant = what == "forward" and not tensor.requires_grad
        if mask(tensor) and (constant or (origin is not None and origin.masks)):
            return
        order = self.order if origin is None else origin.maker.order
        self.found.append(Finding(order, what, call, name, self.batch, origin))

    def first(self) -> Finding | None:
        """The first in the order of execution."""
        return min(self.found, key=lambda f: f.order, default=None)

    def owner(self, maker: Maker) -> Call | None:
        """The innermost module whose code an operation belongs to."""
        if maker.call is not None or maker.node is None:
            return maker.call
        holding = [c for c in self.calls if c.first_node <= maker.node < c.last_node]
        return min(holding, key=lambda c: c.last_node - c.first_node, default=None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if not self.quiet:
            with self.aside():
                self.follow(func, args, kwargs, out)
        return out

    def follow(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Note who made the outputs, and whether one is the first that is not finite on its way."""
        self.order += 1
        name, writes = func.overloadpacket.__name__, func._schema.is_mutable
        given = [t for t in tensors_of((args, kwargs)) if t.layout == torch.strided]
        given_keys = {storage(t) for t in given}
        node = torch._C._current_autograd_node() if self.backward else None
        call = self.stack[-1] if self.stack else None
        maker = Maker(self.order, name, call, None if node is None or call else node._sequence_nr())
        for tensor in tensors_of(out):
            if tensor.layout != torch.strided or ((key := storage(tensor)) in given_keys and not writes):
                continue  # a view: whoever looks at it asks its storage
            if name in NEW:
                self.origins.pop(key, None)
            elif finite(tensor):
                if tensor.numel() * tensor.element_size() >= tensor.untyped_storage().nbytes():
                    self.origins.pop(key, None)
            else:
                self.origins[key] = self.origin_of(func, args, kwargs, given, tensor, maker)
            if name not in NEW:
                self.makers[key] = maker

    def origin_of(
        self, func: Any, args: Any, kwargs: Any, given: list[torch.Tensor], out: torch.Tensor, maker: Maker
    ) -> Origin:
        """Of an output that is not finite: what its inputs had already, or this operation."""
        outside = Origin(Maker(0, "", None, None), False, True)  # a mask that is nobody's buffer
        bad = [(t, self.origins.get(storage(t)) or (outside if mask(t) else None)) for t in given if not finite(t)]
        soft = [o for _, o in bad if o is not None]
        hard = [o for t, o in bad if o is not None and not (o.masks and mask(t))]
        if hard or (soft and mask(out)):
            return min(hard or soft, key=lambda o: o.maker.order)
        if maker.name.endswith("_") and (before := self.origins.get(storage(out))) is not None:
            return before
        constant = not self.backward and not any(t.requires_grad for t in given)
        origin = Origin(maker, self.backward and not self.stack, mask(out) and (maker.name in FILLS or constant))
        origin.limit = torch.finfo(out.dtype).max if out.dtype.is_floating_point else None
        if maker.name == "_to_copy":
            origin.output_max = largest(given)
            source = self.makers.get(storage(given[0])) if given else None
            if source is not None:  # computed in a wider type: whoever computed it left the range of this one
                origin.maker = source
        elif not func._schema.is_mutable:
            origin.output_max = wider(func, args, kwargs)
        makers = {m.node for t in given if (m := self.makers.get(storage(t))) is not None}
        origin.summed = origin.backward and maker.name in ("add", "add_") and len(makers) > 1
        call = self.owner(origin.maker)
        if call is not None and maker.name == "_to_copy" and origin.maker is maker:
            own = dict(call.module.named_parameters(recurse=False)).items()
            origin.rounded = next((n for n, p in own if storage(p) == storage(given[0])), "input")
        if call is not None and call.inputs is not None:
            origin.input_max = largest(call.inputs)
            origin.ranges = [range_of(f"input {i}", t) for i, t in enumerate(tensors_of(call.inputs), 1)]
        else:
            origin.ranges = [range_of(f"operand {i}", t) for i, t in enumerate(given, 1)]
        if call is not None:
            parameters = call.module.named_parameters(recurse=False)
            origin.ranges += [range_of(name, p) for name, p in parameters]
        origin.ranges.append(range_of("result", out))
        return origin


def wider(func: Any, args: Any, kwargs: Any) -> float | None:
    """Largest magnitude of an operation's result in a type that holds it; None where it cannot be told."""
    if torch.Tag.nondeterministic_seeded in func.tags:
        return None
    random = random_state()
    for dtype in (torch.float64, torch.float32):

        def widen(t: torch.Tensor, dtype: torch.dtype = dtype) -> torch.Tensor:
            return t.to(dtype) if t.is_floating_point() else t

        try:
            value = largest(func(*tree_map_only(torch.Tensor, widen, args), **kwargs))
        except Exception:  # an operation may insist on a type
            continue
        finally:
            set_random_state(random)
        if value is not None and value < float("inf"):
            return value
    return None
