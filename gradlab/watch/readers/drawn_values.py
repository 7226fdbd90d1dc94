"""Random numbers of an update: targets that the prediction was not given, and rows that were drawn apart."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gradlab.watch.call_site import call_site
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
BY_ROWS |= {"layer_norm", "batch_norm", "float", "to", "view", "reshape", "mul", "__mul__", *PICKS, *SUMS}
"""Functions that leave each row in its place."""
PIECES = {"split", "split_with_sizes", "chunk", "tensor_split"}
ORDERS = {"argsort", "sort", "topk"}
NONE: frozenset[int] = frozenset()


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
        self.indices: list[Tensor] = []
        self.rows: Any = WeakTensorKeyDictionary()
        """Tensor -> numbers of the drawn indices that its rows were picked by."""
        self.are_known = True
        """Whether no drawn index has become a Python number, which may pick rows unseen."""
        self.errors: Any = WeakTensorKeyDictionary()
        """Difference of a prediction and a target -> what is wrong with it."""
        self.found: list[tuple[Any, Violation]] = []
        """With the nodes of the losses."""
        self.used: list[Violation] = []
        """Of those that went backward."""

    def begin(self, tracker: OptimizerTracker, without: list[Tensor], flat: list[Tensor]) -> bool:
        self.forget()
        return tracker.attempts == 1

    def follow(self, name: str, func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
        inputs = tensors_in([*args, *kwargs.values()])
        of_a_network = name == "normal" and inputs  # an action that a policy draws around its mean
        if isinstance(result, Tensor) and name in NOISE | INDICES and not of_a_network:
            self.shapes.append(result.shape if name in NOISE else None)
            self.made_of[result] = frozenset([len(self.shapes) - 1])
            if name in NOISE:
                self.noise[result] = len(self.shapes) - 1
            return
        if name in PIECES and isinstance(result, (list, tuple)):
            starts = accumulate([len(each) for each in result], initial=0)
            for start, each in zip(starts, result, strict=False):
                self.note_piece(inputs[0], each, slice(start, start + len(each)))
            return
        made_of = NONE.union(*(self.made_of.get(each, NONE) for each in inputs))
        if name in CONVERSIONS | ORDERS and any(self.shapes[i] is None for i in made_of):
            self.are_known = False
        if not made_of or not isinstance(result, Tensor) or name.endswith(SHAPES):
            return
        self.made_of[result] = made_of
        rows = NONE.union(*(self.rows_of(each, name) for each in inputs))
        self.rows[result] = frozenset(i for i in rows if result.shape[:1] == self.indices[i].shape)
        if name == "__getitem__" and isinstance(args[1], slice):
            self.note_piece(inputs[0], result, args[1])
        if name in PICKS and len(inputs) == 2 and not inputs[1].is_floating_point() and inputs[1].dim() == 1:
            self.rows[result] |= {len(self.indices)}
            self.indices.append(inputs[1].detach())
        if len(inputs) == 1 and name in SCALINGS and result.shape == inputs[0].shape and inputs[0] in self.noise:
            self.noise[result] = self.noise[inputs[0]]
        if name in SUMS and len(inputs) == 2:
            one, two = (self.made_of.get(each, NONE) for each in inputs)
            self.added |= (one - two if inputs[1].dim() else NONE) | (two - one if inputs[0].dim() else NONE)
        is_loss = name.endswith("_loss") or name == "cross_entropy"
        if len(inputs) > 1 and (is_loss or name in ("sub", "__sub__")) and result.requires_grad:
            live, target = inputs[:2] if inputs[0].requires_grad else inputs[1::-1]
            in_pairs = live.shape[:1] == target.shape[:1] != () if is_loss else live.shape == target.shape
            why = self.judge(live, target) if in_pairs and live.dim() and not target.requires_grad else ""
            if why and is_loss:
                self.found.append((result.grad_fn, ("unrelated-target", call_site(), why)))
            elif why:
                self.errors[result] = why
        elif name in DISTANCES and inputs[0] in self.errors:
            self.found.append((result.grad_fn, ("unrelated-target", call_site(), self.errors[inputs[0]])))

    def note_piece(self, given: Tensor, piece: Tensor, part: slice) -> None:
        """Some rows that follow each other were taken."""
        if given.shape[1:] == piece.shape[1:] and given in self.made_of:
            self.made_of[piece], whole = self.made_of[given], self.rows.get(given, NONE)
            self.rows[piece] = frozenset(range(len(self.indices), len(self.indices) + len(whole)))
            self.indices += [self.indices[i][part] for i in whole]

    def rows_of(self, given: Tensor, name: str) -> frozenset[int]:
        """Those of which it can be told that the first dimension of what a function returns are still the rows."""
        same = name in BY_ROWS or given.shape[:1].numel() not in given.shape[1:]
        return self.rows.get(given, NONE) if same else NONE

    def judge(self, live: Tensor, target: Tensor) -> str:
        made_of, number = self.made_of.get(live, NONE), self.noise.get(target)
        alike = [i for i in made_of & self.added if self.shapes[i] == target.shape]
        if number is not None and number not in made_of and len(target) > 1 and alike:
            return "it is noise that the prediction was not given: that was given other noise"
        mine, others = (
            [self.indices[i] for i in self.rows.get(each, NONE) if len(self.indices[i]) == len(live) > 1]
            for each in (live, target)
        )
        if mine and others and self.are_known and not any(torch.equal(one, two) for one in mine for two in others):
            return "its rows were drawn apart from those of the input"
        return ""

    def at_backward(self, roots: list[Tensor]) -> None:
        nodes = above_the_model(roots) if self.found else set()
        self.used += [found for node, found in self.found if node in nodes]
        self.found = []  # a node keeps its graph

    def end(self) -> Iterator[Violation]:
        yield from self.used[:1]
        self.forget()
