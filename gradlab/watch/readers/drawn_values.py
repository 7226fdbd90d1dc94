"""Random numbers of an update: targets that the prediction was not given, and rows that were drawn apart."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from linecache import getlines
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gradlab.watch.call_site import USER, CallSite, call_site, origin
from gradlab.watch.events import Violation
from gradlab.watch.followed_update import tensors_in
from gradlab.watch.readers.broadcasts import above_the_model
from gradlab.watch.readers.graph_cuts import CONVERSIONS
from gradlab.watch.readers.hard_values import SCALINGS, SHAPES, SUMS
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

NOISE = {"randn", "randn_like", "normal"}
INDICES = {"randint", "randperm", "multinomial"}
PICKS = {"__getitem__", "index_select"}
DISTANCES = {"pow", "__pow__", "square", "abs"}
BY_ROWS = {"linear", "conv1d", "conv2d", "relu", "tanh", "sigmoid", "gelu", "silu", "leaky_relu", "elu", "dropout"}
BY_ROWS |= {"layer_norm", "batch_norm", "float", "long", "to", "view", "reshape", "squeeze", "unsqueeze"}
BY_ROWS |= {"mul", "__mul__", "flatten", "group_norm", "instance_norm", "dropout1d", "dropout2d", *PICKS, *SUMS}
BY_ROWS |= {f"{kind}_pool{i}d" for kind in ("avg", "max", "adaptive_avg", "adaptive_max") for i in (1, 2, 3)}
"""Functions that leave each row in its place."""
PIECES = {"split", "split_with_sizes", "chunk", "tensor_split"}
ORDERS = {"argsort", "sort", "topk"}
COPIES = {"to", "long", "int", "clone", "contiguous", "cpu", "cuda"}
MAKERS = {"as_tensor", "tensor"}
ORDERING = ("randperm", "permutation(", "shuffle(", "sample(")
"""Calls that draw orders, as a text has them."""
NONE: frozenset[int] = frozenset()
Part = tuple[int, int, int]
"""Rows that follow each other: how many the whole has, the first one, and their number."""


@dataclass
class Rows:
    """What the rows of a table were picked by."""

    indices: Tensor
    site: CallSite | None
    """The line that picks them."""
    part: Part | None = None
    """Which of the rows that were picked; None of all."""
    as_drawn: bool = True
    """Whether nothing was computed of the indices, as of the next row, or of a neighbour."""
    size: int = 0
    """Rows of the data set, of a loader's batch."""


class DrawnValues:
    """Follows them from where they are drawn to the losses of one update."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.shapes: list[torch.Size | None] = []
        """Of what was drawn, by number; None of indices."""
        self.made_of: Any = WeakTensorKeyDictionary()
        """Tensor -> numbers of what was drawn and is in it."""
        self.noise: Any = WeakTensorKeyDictionary()
        """Tensor -> number of the noise that it is, maybe multiplied."""
        self.added: set[int] = set()
        """Numbers of what was added to something else."""
        self.orders: Any = WeakTensorKeyDictionary()
        """Tensor of drawn indices, or a part of them, of which nothing else was computed."""
        self.picks: list[Rows] = []
        self.rows: Any = WeakTensorKeyDictionary()
        """Tensor -> numbers of the drawn indices that its rows were picked by."""
        self.parts: Any = WeakTensorKeyDictionary()
        """Tensor that nothing drawn is in -> which rows of another one it has, which was there before any draw."""
        self.older: Any = WeakTensorKeyDictionary()
        """Tensors that were there when the loop began, and others with the same rows in the same places."""
        self.held: set[int] = set()
        """ids of the arrays and lists that running functions held then: orders among them are older, too."""
        self.partly: Any = WeakTensorKeyDictionary()
        """Tensors of which some rows may not have been picked by what was drawn since."""
        self.are_known = True
        """Whether no drawn index has become a Python number, which may pick rows unseen."""
        self.errors: Any = WeakTensorKeyDictionary()
        """Difference of a prediction and a target -> what is wrong with it, and where if that is known."""
        self.found: list[tuple[Any, Violation]] = []
        """With the nodes of the losses."""
        self.used: list[Violation] = []
        """Of those that went backward."""

    def begin(self, tracker: OptimizerTracker, without: list[Tensor], flat: list[Tensor]) -> bool:
        self.forget()
        if not tracker.attempts:  # the loop begins
            for each in gc.get_objects():
                if type(each) is Tensor:
                    self.older[each] = True
            self.held = held_orders()
        return tracker.attempts == 1

    def follow(self, name: str, func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        inputs = tensors_in([*args, *kwargs.values()])
        of_a_network = name == "normal" and inputs  # an action that a policy draws around its mean
        if isinstance(result, Tensor) and name in NOISE | INDICES and not of_a_network:
            self.shapes.append(result.shape if name in NOISE else None)
            self.made_of[result] = frozenset([len(self.shapes) - 1])
            if name in NOISE:
                self.noise[result] = len(self.shapes) - 1
            else:
                self.orders[result] = True
            return
        if name in PICKS and name != "index_select" and (indices := order_outside(args[1], args[0])) is not None:
            self.note_pick(result, indices, not is_sorted(result))
            self.note_order(result, args[1])
            self.shapes.append(None)
            self.made_of[result] = self.made_of.get(args[0], NONE) | {len(self.shapes) - 1}
            return
        if name in MAKERS and order_outside(args[0], None) is not None:
            self.shapes.append(None)
            self.made_of[result], self.orders[result] = frozenset([len(self.shapes) - 1]), True
            self.note_order(result, args[0])
            return
        if name in PIECES and isinstance(result, (list, tuple)):
            starts = accumulate([len(each) for each in result], initial=0)
            for start, each in zip(starts, result, strict=False):
                self.note_piece(inputs[0], each, start)
            return
        if name == "__getitem__" and isinstance(args[1], slice) and args[1].step in (None, 1):
            self.note_piece(inputs[0], result, args[1].indices(len(args[0]))[0])
        elif name in BY_ROWS | COPIES and len(inputs) == 1 and isinstance(result, Tensor):
            for known in (self.parts, self.older):
                if inputs[0] in known and result.shape[:1] == inputs[0].shape[:1]:
                    known[result] = known[inputs[0]]
        elif name == "copy_" or (name == "__setitem__" and not isinstance(args[2], (bool, int, float))):
            self.older.pop(args[0], None)
            self.partly[args[0]] = True
        made_of = NONE.union(*(self.made_of.get(each, NONE) for each in inputs))
        if name in CONVERSIONS | ORDERS and any(self.shapes[i] is None for i in made_of):
            self.are_known = False
        if not made_of or not isinstance(result, Tensor) or name.endswith(SHAPES):
            return
        self.made_of[result] = made_of
        if any(each in self.partly or (name not in PICKS and self.is_left(each, result)) for each in inputs):
            self.partly[result] = True
        rows = NONE.union(*(self.rows_of(each, name) for each in inputs))
        self.rows[result] = self.rows.get(result, NONE).union(
            i for i in rows if result.shape[:1] == self.picks[i].indices.shape
        )
        if name in PICKS and len(inputs) == 2 and not inputs[1].is_floating_point() and inputs[1].dim() == 1:
            self.note_pick(result, inputs[1].detach(), inputs[1] in self.orders)
        if name in COPIES and inputs[0] in self.orders:
            self.orders[result] = True
        if len(inputs) == 1 and name in SCALINGS and result.shape == inputs[0].shape and inputs[0] in self.noise:
            self.noise[result] = self.noise[inputs[0]]
        if name in SUMS and len(inputs) == 2:
            one, two = (self.made_of.get(each, NONE) for each in inputs)
            self.added |= (one - two if inputs[1].dim() else NONE) | (two - one if inputs[0].dim() else NONE)
        is_loss = name.endswith("_loss") or name == "cross_entropy"
        if len(inputs) > 1 and (is_loss or name in ("sub", "__sub__")) and result.requires_grad:
            live, target = inputs[:2] if inputs[0].requires_grad else inputs[1::-1]
            in_pairs = live.shape[:1] == target.shape[:1] != () if is_loss else live.shape == target.shape
            wrong = self.judge(live, target) if in_pairs and live.dim() and not target.requires_grad else None
            if wrong is not None and is_loss:
                self.note_found(result, *wrong)
            elif wrong is not None:
                self.errors[result] = wrong
        elif name in DISTANCES and inputs[0] in self.errors:
            self.note_found(result, *self.errors[inputs[0]])

    def note_pick(self, result: Tensor, indices: Tensor, as_drawn: bool) -> None:
        self.rows[result] = self.rows.get(result, NONE) | {len(self.picks)}
        self.picks.append(Rows(indices, call_site(), as_drawn=as_drawn))

    def note_loaded(self, batch: list[Tensor], indices: Tensor, size: int) -> None:
        """A loader has put a batch together."""
        self.shapes.append(None)
        for each in batch:
            self.made_of[each], self.rows[each] = frozenset([len(self.shapes) - 1]), frozenset([len(self.picks)])
        self.picks.append(Rows(indices, call_site(), size=size))

    def note_order(self, result: Tensor, order: Any) -> None:
        """It was made by an order that was drawn outside PyTorch: maybe before, and used for the target then."""
        if not self.held.isdisjoint((id(order), id(getattr(order, "base", None)))):
            self.partly[result] = True

    def is_left(self, given: Tensor, result: Tensor) -> bool:
        """Whether it may be a table whose rows are in their first order, as of a batch that is mixed with itself."""
        same = given.dim() == result.dim() and given.shape[:1] == result.shape[:1]
        drawn = given in self.noise or given in self.orders or self.rows.get(given)
        return same and not drawn and not given.requires_grad

    def note_found(self, loss: Tensor, why: str, site: CallSite | None) -> None:
        self.found.append((loss.grad_fn, ("unrelated-target", site or call_site(), why)))

    def note_piece(self, given: Tensor, piece: Tensor, start: int) -> None:
        """Some rows that follow each other were taken."""
        if given.shape[1:] != piece.shape[1:] or not given.dim():
            return
        part = (len(given), start, len(piece))
        if given not in self.made_of:
            if given in self.older:
                self.parts[piece] = part
            return
        if given in self.partly:
            self.partly[piece] = True
        self.made_of[piece], whole = self.made_of[given], [self.picks[i] for i in self.rows.get(given, NONE)]
        self.rows[piece] = frozenset(range(len(self.picks), len(self.picks) + len(whole)))
        self.picks += [replace(each, indices=each.indices[start : start + len(piece)], part=part) for each in whole]
        if given in self.orders:
            self.orders[piece] = True

    def rows_of(self, given: Tensor, name: str) -> frozenset[int]:
        """Those of which it can be told that the first dimension of what a function returns are still the rows."""
        same = name in BY_ROWS or given.shape[:1].numel() not in given.shape[1:]
        return self.rows.get(given, NONE) if same else NONE

    def judge(self, live: Tensor, target: Tensor) -> tuple[str, CallSite | None] | None:
        """What is wrong with a target, and where; None of the line of the loss."""
        made_of, number = self.made_of.get(live, NONE), self.noise.get(target)
        alike = [i for i in made_of & self.added if self.shapes[i] == target.shape]
        if number is not None and number not in made_of and len(target) > 1 and alike:
            return "it is noise that the prediction was not given: that was given other noise", None
        mine, others = (
            [self.picks[i] for i in self.rows.get(each, NONE) if len(self.picks[i].indices) == len(live) > 1]
            for each in (live, target)
        )
        if not mine or not self.are_known:
            return None
        apart = all(each.as_drawn for each in [*mine, *others]) and len({each.size for each in [*mine, *others]}) == 1
        if others and apart and not any(torch.equal(one.indices, two.indices) for one in mine for two in others):
            return "its rows were drawn apart from those of the input", others[0].site
        part = self.parts.get(target)
        if (
            part is not None
            and live not in self.partly
            and all(each.part == part for each in mine)
            and bool((target != target[0]).any())
        ):
            return "its rows are in their first order, and those of the input in another one", mine[0].site
        return None

    def at_backward(self, roots: list[Tensor]) -> None:
        nodes = above_the_model(roots) if self.found else set()
        self.used += [found for node, found in self.found if node in nodes]
        self.found = []  # a node keeps its graph

    def end(self) -> Iterator[Violation]:
        yield from self.used[:1]
        self.forget()


def held_orders() -> set[int]:
    """ids of the arrays and lists that the user's running functions hold."""
    frame: FrameType | None = sys._getframe(1)
    found: set[int] = set()
    while frame is not None:
        if origin(frame.f_code.co_filename) == USER:
            values = [*frame.f_locals.values(), *frame.f_globals.values()]
            found |= {id(each) for each in values if type(each) in (list, np.ndarray)}
        frame = frame.f_back
    return found


def is_sorted(rows: Tensor) -> bool:
    """Whether any feature of the rows rises, or falls, from each to the next."""
    steps = rows.detach().reshape(len(rows), -1).float().diff(dim=0)
    return any(bool(((each >= 0).all(0) & (each > 0).any(0)).any()) for each in (steps, -steps))


def draws_orders(site: CallSite | None) -> bool:
    """Whether the text around a line draws any: an array may also sort what it picks."""
    return site is not None and any(each in "".join(getlines(site[0].co_filename)) for each in ORDERING)


def order_outside(given: Any, table: Tensor | None) -> Tensor | None:
    """Indices that were drawn outside PyTorch: an array or list of all numbers below that of the rows, in another
    order, or a slice of such an array. table: whose rows they are to be."""
    if not isinstance(given, (list, np.ndarray)) or not len(given):
        return None
    own = np.asarray(given) if isinstance(given, np.ndarray) or all(type(each) is int for each in given) else None
    if own is None or own.ndim != 1 or own.dtype.kind not in "iu" or not draws_orders(call_site()):
        return None
    whole = own.base if isinstance(own.base, np.ndarray) and own.base.ndim == 1 else own
    every = np.arange(len(whole) if table is None else len(table))
    if len(whole) != len(every) or np.array_equal(whole, every) or not np.array_equal(np.sort(whole), every):
        return None
    return torch.from_numpy(own.astype(np.int64))
