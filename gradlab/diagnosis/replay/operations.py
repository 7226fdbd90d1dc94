"""Follow every operation of a forward and backward pass: which one made the first non-finite number.

The minus infinities of a mask, which a softmax absorbs, do not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from gradlab.base.randomness import random_state, set_random_state
from gradlab.diagnosis.replay.failure import OVERFLOW, TELL, failure
from gradlab.diagnosis.replay.overflow import RESULT
from gradlab.diagnosis.replay.ranges import finite, largest, mask, range_of, tensors_of
from gradlab.diagnosis.replay.traced import Call, Maker, Origin

FILLS = {"full", "full_like", "fill", "fill_", "masked_fill", "masked_fill_", "where", "scalar_tensor", "lift_fresh"}
"""Operations that write a given number: minus infinity is then intended."""
NEW = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_"}
"""Operations whose result is uninitialised."""


def storage(tensor: torch.Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address


class Operations(TorchDispatchMode):
    """Records which operation made each tensor, and where a non-finite one came from."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled under it. PyTorch would import its compiler to say so, and do so again at every op."""
        return False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []  # in the order in which they ended
        self.stack: list[Call] = []
        self.origins: dict[int, Origin] = {}  # by storage
        self.makers: dict[int, Maker] = {}
        self.order = 0
        self.backward = self.quiet = False

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Context for computations that are not part of the update."""
        before, self.quiet = self.quiet, True
        try:
            with torch.no_grad():
                yield
        finally:
            self.quiet = before

    def owner(self, maker: Maker) -> Call | None:
        """The innermost module whose code an operation belongs to."""
        if maker.call is not None or maker.node is None:
            return maker.call
        holding = [c for c in self.calls if c.first_node <= maker.node < c.last_node]
        return min(holding, key=lambda c: c.last_node - c.first_node, default=None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = args
        if not self.quiet and func._schema.is_mutable and func.overloadpacket.__name__.rstrip("_") in TELL:
            with self.aside():
                given = (args[0].clone(), *args[1:])  # it is about to be overwritten
        out = func(*args, **kwargs)
        if not self.quiet:
            with self.aside():
                self.follow(func, args, kwargs, out, given)
        return out

    def follow(self, func: Any, args: Any, kwargs: Any, out: Any, before: Any) -> None:
        """Record which operation made the outputs, and the origin of non-finite ones.

        before: its arguments as they were when it began.
        """
        self.order += 1
        name, writes = func.overloadpacket.__name__, func._schema.is_mutable
        given = [t for t in tensors_of((args, kwargs)) if t.layout == torch.strided]
        given_keys = {storage(t) for t in given}
        node = torch._C._current_autograd_node() if self.backward else None
        call = self.stack[-1] if self.stack else None
        maker = Maker(self.order, name, call, None if node is None or call else node._sequence_nr())
        for tensor in tensors_of(out):
            if tensor.layout != torch.strided or ((key := storage(tensor)) in given_keys and not writes):
                continue  # a view: looked up by its storage
            if name in NEW:
                self.origins.pop(key, None)
            elif finite(tensor):
                if tensor.numel() * tensor.element_size() >= tensor.untyped_storage().nbytes():
                    self.origins.pop(key, None)
            else:
                origin = self.origins[key] = self.origin_of(func, args, kwargs, given, tensor, maker)
                if origin.failure is None:
                    origin.failure = failure(name, before, kwargs, tensor) if origin.maker is maker else OVERFLOW
                    origin.derivative = derivative(node)
            if name not in NEW:
                self.makers[key] = maker

    def origin_of(
        self, func: Any, args: Any, kwargs: Any, given: list[torch.Tensor], out: torch.Tensor, maker: Maker
    ) -> Origin:
        """The origin of a non-finite output: that of its inputs, or this operation."""
        outside = Origin(Maker(0, "", None, None), False, True)  # a mask that is not a buffer
        bad = [(t, self.origins.get(storage(t)) or (outside if mask(t) else None)) for t in given if not finite(t)]
        soft = [o for _, o in bad if o is not None]
        hard = [o for t, o in bad if o is not None and not (o.masks and mask(t))]
        if hard or (soft and mask(out)):
            return min(hard or soft, key=lambda o: o.maker.order)
        if maker.name.endswith("_") and (before := self.origins.get(storage(out))) is not None:
            return before
        constant = not self.backward and not any(t.requires_grad for t in given)
        origin = Origin(maker, self.backward and not self.stack, mask(out) and (maker.name in FILLS or constant))
        origin.operand_max = largest(given)
        origin.limit = torch.finfo(out.dtype).max if out.dtype.is_floating_point else None
        if maker.name == "_to_copy":
            origin.output_max = largest(given)
            source = self.makers.get(storage(given[0])) if given else None
            if source is not None:  # what computed it in a wider type did not overflow, but is what made it large
                origin.maker, origin.rounded = source, RESULT
        elif not func._schema.is_mutable:
            origin.output_max = wider(func, args, kwargs)
        makers = {m.node for t in given if (m := self.makers.get(storage(t))) is not None}
        origin.summed = origin.backward and maker.name in ("add", "add_") and len(makers) > 1
        call = self.owner(origin.maker)
        if call is not None and maker.name == "_to_copy" and origin.maker is maker:
            own = [*call.module.named_parameters(recurse=False), *call.module.named_buffers(recurse=False)]
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


def derivative(node: Any) -> str | None:
    """Of which operation a node of the backward pass computes the derivative, by PyTorch's name of it."""
    found = None if node is None else re.fullmatch(r"(\w+)Backward\d*", node.name())
    return re.sub(r"(?<!^)(?=[A-Z])", "_", found[1]).lower() if found else None


def wider(func: Any, args: Any, kwargs: Any) -> float | None:
    """Largest magnitude of an operation's result in a wider type; None where it cannot be computed."""
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
