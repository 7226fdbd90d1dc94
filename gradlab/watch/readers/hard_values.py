"""Values that enter a network, or a loss, without their gradient: an index, a comparison, a rounded or drawn number."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gradlab.watch.call_site import CallSite, call_site
from gradlab.watch.events import Violation
from gradlab.watch.followed_update import FLAT, NETWORKS, tensors_in
from gradlab.watch.readers.broadcasts import above_the_model
from gradlab.watch.readers.gradient_reads import GRADIENT
from gradlab.watch.readers.graph_cuts import decorated_site
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker, listed

EXPLICIT = {"detach", "detach_", "__get__", "__set__", "tensor", "as_tensor", "requires_grad_", "copy_", "clone"}
"""Functions that end a graph on purpose."""
SHAPES = ("_like", "empty", "zeros", "ones", "full", "size", "dim", "numel")
"""Ends of names of functions that ask a tensor for its shape."""
ADDITIONS = {"add", "__add__", "__radd__", "__iadd__", "stack"}
SUMS = {*ADDITIONS - {"stack"}, "sub", "__sub__", "__rsub__", "__isub__"}
SCALINGS = {
    "mul",
    "__mul__",
    "__rmul__",
    "div",
    "__truediv__",
    "mean",
    "sum",
    "squeeze",
    "view",
    "reshape",
    "to",
    "float",
}
"""Functions that leave a term of a loss a term."""
JOINS = {*SUMS, "stack", "cat", "where"}
CUT = "gradlab_cut"
"""Key of the numbers of calls in the metadata of the nodes of a loss that they end the graph of."""
DONE = "gradlab_done"
"""Key of those that a backward pass went through."""
EVERY = -1
"""The bits of all weights: those of a tensor of unknown origin."""
NONE: frozenset[int] = frozenset()


class HardValues:
    """Finds calls that return such values of one update, if these values go on where their gradient does not.

    They go on into weights of another network, or are a term of the loss, and whatever they were computed from gets a
    gradient of other terms alone. Nothing is said of values that meet what they were computed from again, as in a
    straight-through estimator, the logarithm of the probability of what was drawn, or a mask; nor of `detach()` and
    `no_grad()`, which are meant, unless what they return is added to the loss as a whole term. The gradient of a
    network by its input, without a graph, may be added to an input, or be a weight, but is no part of an error.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.weights: dict[int, int] = {}
        """id of a weight -> its bit."""
        self.names: list[str] = []
        self.live: Any = WeakTensorKeyDictionary()
        """Tensor with a graph -> bits of the weights in it."""
        self.hard: Any = WeakTensorKeyDictionary()
        """Tensor that passes no gradient -> numbers of the calls that its values come from, and if it has a graph."""
        self.through: Any = WeakTensorKeyDictionary()
        """Tensor with a graph -> numbers of the calls whose values went into it through weights, or as a term."""
        self.calls: list[tuple[CallSite | None, int]] = []
        """Line, and bits of the weights that its arguments were computed from."""
        self.meant: set[int] = set()
        """Numbers of the calls of `detach()` and under `no_grad()`: they matter as terms of the loss alone."""
        self.written: set[int] = set()
        """Numbers of those that write to what there is, as an average of weights: that is not where a value goes on."""
        self.numbers: dict[float, int] = {}
        """Python number -> number of the call that has made it of a tensor."""
        self.slopes: set[int] = set()
        """Numbers of the calls that return gradients by what is no weight."""
        self.disabled_at: CallSite | None = None
        """Where gradients were disabled."""
        self.latest: int | None = None
        """Number of what is called under the `no_grad()` that holds."""
        self.tables = 0
        """Bits of the weights of which rows are picked."""
        self.met: set[int] = set()
        """Numbers of the calls whose values have met those weights again."""
        self.found: dict[int, int] = {}
        """Number of a call -> bits of the weights that other terms train."""
        self.drawn: bool | None = None
        """Where gradients are disabled: whether a distribution has done that."""

    def begin(self, tracker: OptimizerTracker, without: list[Tensor], flat: list[Tensor]) -> bool:
        self.forget()
        if tracker.attempts > 1:
            return False
        self.weights = {id(p): 1 << i for i, p in enumerate(tracker.params)}
        self.names = tracker.names
        return True

    def calls_of(self, tensor: Tensor) -> frozenset[int] | None:
        """Of a value without gradient; None of others, and where a function of the loop's own gave it a graph since."""
        known = self.hard.get(tensor)
        return None if known is None or known[1] != tensor.requires_grad else known[0]

    def bits(self, tensor: Tensor) -> int:
        """The weights that get a gradient through a tensor."""
        if not tensor.requires_grad or self.calls_of(tensor) is not None:
            return 0
        if (own := self.weights.get(id(tensor))) is not None:
            return own
        return int(self.live.get(tensor, 0 if tensor.is_leaf else EVERY))

    def follow(self, name: str, func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        if name == "_set_grad_enabled":
            self.drawn = None if args[0] else by_distribution() if self.drawn is None else self.drawn
            self.disabled_at, self.latest = None if args[0] else decorated_site() or call_site(), None
        if name == "__get__" and func == GRADIENT:
            return
        inputs = tensors_in([*args, *kwargs.values()])
        outputs = tensors_in([args[0]] if name == "__setitem__" else [result])
        if (
            name in ("item", "__float__")
            and isinstance(result, float)
            and (bits := self.bits(args[0])) not in (0, EVERY)
        ):
            self.numbers[result] = self.add_meant(inputs, bits)
        if not inputs and outputs and name in EXPLICIT and (made := self.made_into(numbers_in(args))):
            self.hard[outputs[0]] = made, outputs[0].requires_grad
        if not inputs or not outputs:
            return
        bits, hard, through = 0, frozenset[int](), frozenset[int]()
        for each in inputs:
            known = self.hard.get(each)
            if (
                known is not None and known[1] == each.requires_grad
            ):  # else a function of the loop's own gave it a graph
                hard |= known[0]
            else:
                bits |= EVERY if known is not None and not each.is_leaf else self.bits(each)
                through |= self.through.get(each, NONE)
        losses = all(each.ndim == 1 for each in inputs) and not hard  # of samples
        numbers = all(each.numel() == 1 for each in inputs)
        is_term = (name in SUMS and (losses or numbers)) or (name == "stack" and numbers)
        if is_term and bits:
            if name in ADDITIONS and numbers:
                through |= hard | self.made_into(args)
            else:
                through = (through | hard) - self.meant
        elif (hard or through) and bits:
            if numbers and (name not in SCALINGS or (len(inputs) > 1 and all(map(self.bits, inputs)))):
                self.met |= {i for i in through if self.calls[i][1] & bits}  # of a difference: it is a target
            table = inputs[0] if is_lookup(name, inputs) else inputs[1] if name == "embedding" else None
            self.tables |= self.bits(table) if table is not None and hard else 0
            joined = self.slopes if name in JOINS or "loss" in name else NONE
            for i in (hard | through) - self.met - self.meant - joined:
                beside = [each for each in inputs if each is not table and i not in self.through.get(each, NONE)]
                if any(self.calls[i][1] & self.bits(each) for each in beside):
                    self.met.add(i)
            if name in NETWORKS or is_lookup(name, inputs):
                through = (through | hard) - self.slopes
            scaled = name in SCALINGS and (numbers or len(inputs) == 1)
            through = (through | hard & joined) - (NONE if scaled else self.meant)
        elif hard and name in ("__getitem__", "index_select", "gather", "take_along_dim"):
            hard = self.calls_of(inputs[0]) or NONE  # data that are picked
        off = not torch.is_grad_enabled() and not self.drawn
        if name == "detach":
            hard -= self.slopes
        ends = bits not in (0, EVERY) and not name.endswith(SHAPES) and not name.startswith("new_")
        new = NONE
        for each in outputs:
            if each.requires_grad and name not in FLAT and (bits or not hard):
                self.live[each], self.through[each] = bits, through
                self.hard.pop(each, None)
                continue
            if id(each) in self.weights:  # it was written to
                continue
            if ends and not new and (off or name in EXPLICIT):
                new = frozenset([self.add_meant(inputs, bits)])
                self.written |= new if name.endswith("_") and not name.endswith("__") else NONE
            elif ends and not new:
                self.calls.append((call_site(), bits))
                new = frozenset([len(self.calls) - 1])
                slope = name == "grad" and not self.bits_of([args[1] if len(args) > 1 else kwargs.get("inputs")])
                self.slopes |= new if slope else NONE
            self.hard[each] = (hard | new) & self.meant if off else hard | new, each.requires_grad

    def bits_of(self, values: list[Any]) -> int:
        found = 0
        for each in tensors_in(values):
            found |= self.bits(each)
        return found

    def add_meant(self, inputs: list[Tensor], bits: int) -> int:
        """A call that ends a graph on purpose: its number, which it leaves at the nodes of the loss that it ends.

        All under one `no_grad()` have one number.
        """
        off = not torch.is_grad_enabled()
        site = self.disabled_at if off else call_site()
        number = self.latest if off and self.latest is not None else len(self.calls)
        earlier = self.calls[number][1] if number < len(self.calls) else 0
        self.calls[number : number + 1] = [(site, bits | earlier)]
        self.latest = number if off else None
        self.meant.add(number)
        for node in above_the_model(inputs):
            node.metadata.setdefault(CUT, set()).add(number)
            if DONE in node.metadata:
                self.met.add(number)
        return number

    def made_into(self, args: list[Any]) -> frozenset[int]:
        """Numbers of the calls that a Python number comes from, also where it was multiplied by a short one."""
        given = [each for each in args if isinstance(each, float) and each]
        known = [(value, i) for value, i in self.numbers.items() if value and not is_short(value)]
        return frozenset(i for each in given for value, i in known if is_short(each / value))

    def at_backward(self, roots: list[Tensor]) -> None:
        kept: set[int] = set()
        for node in above_the_model(roots):
            kept |= node.metadata.get(CUT, set())
            node.metadata[DONE] = True
        self.met |= kept
        for root in roots:
            bits, through = self.bits(root), self.through.get(root, NONE)
            for i in through - self.meant if through & kept else through:  # else the value of the loss is corrected
                if bits != EVERY and (others := bits & self.calls[i][1] & ~self.tables):
                    self.found[i] = others

    def end(self) -> Iterator[Violation]:
        for i in sorted(self.found.keys() - self.met, key=lambda number: (number in self.written, number))[:1]:
            names = [name for k, name in enumerate(self.names) if self.found[i] >> k & 1]
            yield "term-of-nothing-trained" if i in self.meant else "hard-value", self.calls[i][0], listed(names)
        self.forget()


def numbers_in(values: list[Any]) -> list[Any]:
    """Also those in lists."""
    return [n for each in values for n in (numbers_in(list(each)) if isinstance(each, (list, tuple)) else [each])]


def is_short(factor: float) -> bool:
    """Whether it is a number as people write it."""
    return abs(factor) > 1e-6 and abs(factor / float(f"{factor:.2g}") - 1) < 1e-12


def is_lookup(name: str, inputs: list[Tensor]) -> bool:
    """Whether rows of a weight are picked."""
    return name in ("__getitem__", "index_select", "gather") and inputs[0].is_leaf and inputs[0].requires_grad


def by_distribution() -> bool:
    """Whether gradients are being disabled by a distribution that draws."""
    frame: Any = sys._getframe(1)
    for _ in range(12):
        if frame is None:
            return False
        if frame.f_globals.get("__name__", "").startswith("torch.distributions"):
            return True
        frame = frame.f_back
    return False
