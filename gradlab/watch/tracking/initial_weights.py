"""Weights as they were when their optimizer was tracked first, and whether they are as a layer draws them."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gradlab.watch.output.update_metrics import elements
from gradlab.watch.tracking.followers import alike
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

LEAST = 128
"""Elements that show a distribution."""
EDGE = 3.0
"""Largest square over the mean square, of a uniform distribution around zero."""
FLAT = 1.8
"""Mean fourth power over the square of the mean square, of the same."""
NORMAL = 3.0
"""The same of a normal distribution."""
WRITES = 8
"""Times that a weight is written to as it is made, drawn and copied: training writes to it more often."""
LARGEST = 1.15
"""Times that the largest singular value of independent elements may be what is expected of it."""
MOST = 512
"""Rows of which singular values are computed at most."""


class InitialWeights:
    """Some elements of each trained matrix."""

    def __init__(self) -> None:
        self.known: dict[int, list[tuple[weakref.ref[Tensor], Tensor]]] = {}
        """Optimizer index -> matrices, and their elements."""
        self.tracked: dict[int, set[int]] = {}
        """Optimizer index -> ids of all weights that were trained."""
        self.written: set[int] = set()
        """ids of the matrices that were written to many times before: they were trained then."""

    def note(self, tracker: OptimizerTracker) -> None:
        """An optimizer is tracked from here on."""
        matrices = [p for p in tracker.params if p.dim() > 1 and p.is_floating_point()] if not tracker.sharded else []
        self.tracked[tracker.index] = set(tracker.ids)
        self.known[tracker.index] = [(weakref.ref(p), elements(p).clone()) for p in matrices]
        self.written |= {id(p) for p in matrices if p._version > WRITES}

    def ids(self, tracker: OptimizerTracker) -> set[int]:
        return self.tracked[tracker.index]

    def has_values_of(self, tracker: OptimizerTracker, p: Tensor) -> bool:
        """Whether a weight has the initial values of one that is trained."""
        now = elements(p)
        same = [first for ref, first in self.known[tracker.index] if (q := ref()) is not None and q.shape == p.shape]
        return any(alike(first, now) and torch.equal(first, now) for first in same)

    def is_as_drawn(self, p: Tensor, layered: set[int]) -> bool:
        """Whether a matrix that is hardly moved is as its class has drawn it. layered: ids of those of PyTorch's layers
        that draw evenly; what is normal in one of these may have come from training."""
        return id(p) not in self.written and (is_uniform(p) or (id(p) not in layered and is_normal(p)))

    def moves(self, tracker: OptimizerTracker) -> dict[int, tuple[float, float]]:
        """id of a weight -> squares of how far it has moved since, and of its norm at the start."""
        found = {}
        for ref, first in self.known[tracker.index]:
            if (p := ref()) is not None and alike(first, elements(p)):
                move = (elements(p) - first).double()
                found[id(p)] = float(move.square().sum()), float(first.double().square().sum())
        return found


def in_even_layers(models: Sequence[nn.Module]) -> set[int]:
    """ids of the weights of PyTorch's own layers but tables, which draw normal elements."""
    layers = [m for model in models for m in model.modules() if type(m).__module__.startswith("torch.nn.")]
    tables = nn.Embedding, nn.EmbeddingBag
    return {id(p) for m in layers if not isinstance(m, tables) for p in m.parameters(recurse=False)}


def is_uniform(p: Tensor) -> bool:
    """Whether elements are spread evenly between a bound and its negative, as linear and convolutional layers of
    PyTorch begin: training rounds off these edges."""
    edge, flat = edge_and_flatness(p)
    error = 3 / math.sqrt(max(p.numel(), 1))  # three standard errors of the mean square
    return abs(edge / EDGE - 1) < 0.03 + error and abs(flat / FLAT - 1) < 0.02 + error


def is_normal(p: Tensor) -> bool:
    """Whether elements are normal around zero, of any variance, and depend on each other no more than drawn ones do:
    the singular values of a matrix that was trained, which may be as normal, stand out."""
    _edge, flat = edge_and_flatness(p)
    error = math.sqrt(24 / max(p.numel(), 1))
    if abs(flat - NORMAL) >= 3 * error:
        return False
    rows = p.detach().flatten(1)[:MOST].double()
    deviation, mean = float(rows.square().mean().sqrt()), float(rows.mean())
    expected = deviation * (math.sqrt(rows.shape[0]) + math.sqrt(rows.shape[1]))
    centred = abs(mean) < 4 * deviation / math.sqrt(rows.numel())
    return centred and float(torch.linalg.matrix_norm(rows, 2)) < LARGEST * expected


def edge_and_flatness(p: Tensor) -> tuple[float, float]:
    """Largest square and mean fourth power over the mean square and its square; zeros of what shows no distribution."""
    if p.dim() < 2 or p.numel() < LEAST or not p.is_floating_point():
        return 0.0, 0.0
    squares = p.detach().double().square()
    mean = float(squares.mean())
    return (float(squares.max()) / mean, float(squares.square().mean()) / mean**2) if mean > 0 else (0.0, 0.0)
